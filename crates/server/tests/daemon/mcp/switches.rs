//! Switches that belong to an earlier server of the same name.

use super::*;

/// Makes the store refuse to delete switches.
async fn keep_switches(desk: &Desk, engine: Engine) {
    let statements: &[&str] = match engine {
        Engine::Sqlite => &["CREATE TRIGGER keep_switches BEFORE DELETE ON workspace_switches
             BEGIN SELECT RAISE(ABORT, 'refused by the test'); END"],
        Engine::Postgres => &[
            "CREATE FUNCTION keep_switches() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RAISE EXCEPTION 'refused by the test'; END $$",
            "CREATE TRIGGER keep_switches BEFORE DELETE ON workspace_switches FOR EACH ROW
             EXECUTE FUNCTION keep_switches()",
        ],
    };
    for statement in statements {
        desk.server.store(statement).await;
    }
}

#[both_engines]
async fn an_addition_whose_switch_cannot_be_deleted_is_withdrawn(engine: Engine) {
    let desk = Desk::start(engine, |_| {}).await;
    for name in ["mine", "gone"] {
        desk.add(name, desk.config("good")).await.with_status(200);
        desk.act(name, "disable").await.with_status(200);
    }
    let path = format!("{SERVERS}/gone");
    desk.server.as_client(&desk.client, "DELETE", &path, &Value::Null).await.with_status(200);
    let before = desk.status().await["servers"].clone();
    keep_switches(&desk, engine).await;
    // One that would replace another, and one that would be new.
    for name in ["mine", "gone"] {
        let answer = desk.add(name, desk.config("changes")).await;
        assert!(answer.status >= 500, "{}", answer.text);
        assert!(!answer.text.contains(SECRET) && !answer.text.contains("refused by the test"), "{}", answer.text);
    }
    let names = |servers: &Value| -> Vec<(Value, Value)> {
        servers.as_array().unwrap().iter().map(|one| (one["name"].clone(), one["disabled"].clone())).collect()
    };
    let after = desk.status().await["servers"].clone();
    assert_eq!(names(&after), names(&before), "what was switched off stays so");
    assert_eq!(names(&after), [(json!("mine"), json!(true))]);
    assert_eq!(desk.frames("mcp_server_added").await.len(), 2, "nothing was announced");
    let trigger = if engine == Engine::Sqlite { "" } else { " ON workspace_switches" };
    desk.server.store(&format!("DROP TRIGGER keep_switches{trigger}")).await;
    let again = desk.add("mine", desk.config("good")).await.with_status(200);
    assert_eq!((&again["replaced"], &again["toolCount"]), (&json!(true), &json!(2)), "the earlier one was still there");
    desk.add("gone", desk.config("good")).await.with_status(200);
    assert_eq!(desk.of("gone").await["disabled"], false);
}
