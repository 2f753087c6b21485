use proptest::prelude::*;
use serde_json::{Map, json};

use super::*;
use crate::kernel::context::{Note, Remark, UsersClock};

const TOOLS: [&str; 3] = ["time_now", "calendar_write", "web_fetch"];

fn read(text: &str) -> Result<TurnPlan, PlanProblem> {
    TurnPlan::read(text, |name| TOOLS.contains(&name))
}

fn plan(tools: &[&str], instructions: &str) -> Value {
    json!({"tools": tools, "instructions": instructions})
}

#[test]
fn a_request_is_read_from_the_payload_and_absent_by_default() {
    let of = |payload: Value| RuntimeConfig::of(&RawJson::of(&payload));
    assert_eq!(of(json!({"prompt": "hi"})), RuntimeConfig::default());
    assert_eq!(RuntimeConfig::default().router, None);
    let config = of(json!({"runtimeConfig": {"mode": "chat", "router": "auto", "routerMs": 5, "enabledTools": ["a"],
        "messagesMax": 4}}));
    assert_eq!((config.router, config.router_limit_ms(), config.messages_max), (Some(RouterMode::Auto), 5, Some(4)));
    let whole = RawJson::of(&json!({"runtimeConfig": config}));
    assert_eq!(RuntimeConfig::of(&whole), config);
    assert_eq!(of(json!({"runtimeConfig": {"routerMs": u64::MAX}})).router_limit_ms(), ROUTER_MS_MAX);
    assert_eq!(of(json!({"runtimeConfig": {"routerMs": 0}})).router_limit_ms(), 1);
}

#[test]
fn a_turn_that_continues_earlier_work_has_no_request_of_a_router() {
    use RouterMode::{Always, Auto, Off};
    for (mode, has_earlier_calls, only_brings_results, expected) in [
        (None, false, false, None),
        (None, true, true, None),
        (Some(Off), false, true, Some(Off)),
        (Some(Auto), false, false, Some(Auto)),
        (Some(Auto), false, true, Some(Auto)),
        (Some(Always), false, false, Some(Always)),
        (Some(Always), false, true, Some(Auto)),
        (Some(Auto), true, false, Some(Off)),
        (Some(Always), true, true, Some(Off)),
    ] {
        let config = RuntimeConfig { router: mode, ..RuntimeConfig::default() };
        assert_eq!(config.effective_router(has_earlier_calls, only_brings_results), expected, "{mode:?}");
    }
}

#[test]
fn a_plan_is_read_also_from_a_code_block() {
    let text = r#"{"tools": ["time_now", "time_now"], "context": ["clock"], "instructions": "look", "why": "extra"}"#;
    let expected = TurnPlan {
        tools: vec!["time_now".into()],
        context: Some(vec![PlanContext::Clock]),
        instructions: "look".into(),
    };
    for text in [text.to_owned(), format!("\n {text}\n"), format!("```json\n{text}\n```"), format!("```\n{text}```")] {
        assert_eq!(read(&text), Ok(expected.clone()), "{text}");
    }
    let all = read(&plan(&[], "just answer").to_string()).unwrap();
    assert!(PlanContext::ALL.into_iter().all(|part| all.uses(part)));
    let none = read(r#"{"tools": [], "context": [], "instructions": "x"}"#).unwrap();
    assert!(!PlanContext::ALL.into_iter().any(|part| none.uses(part)));
}

#[test]
fn nonsense_is_no_plan() {
    use PlanProblem::{Empty, NotJson, Shape, TooLong, UnknownTool};
    let long = plan(&[], &"x".repeat(PLAN_INSTRUCTIONS_CHARS_MAX + 1)).to_string();
    let longer = " ".repeat(PLAN_BYTES_MAX + 1);
    for (text, expected) in [
        ("", Empty),
        (" \n", Empty),
        ("Sure! I will look at the calendar.", NotJson),
        (r#"{"tools": ["time_now"]"#, NotJson),
        ("[]", Shape),
        ("{}", Shape),
        (r#"{"tools": "time_now", "instructions": "x"}"#, Shape),
        (r#"{"tools": [], "instructions": " "}"#, Shape),
        (r#"{"tools": [], "context": ["everything"], "instructions": "x"}"#, Shape),
        (r#"{"tools": ["time_now", "rm_rf"], "instructions": "x"}"#, UnknownTool("rm_rf".into())),
        (long.as_str(), TooLong),
        (longer.as_str(), TooLong),
    ] {
        assert_eq!(read(text), Err(expected), "{}", &text[..text.len().min(80)]);
    }
}

#[test]
fn the_worker_receives_the_context_that_the_plan_names() {
    let context = Context {
        messages: vec![Remark { role: "system".into(), text: "m".into(), sent: Map::new() }],
        notes: vec![Note { description: "d".into(), value: "v".into() }],
        clock: Some(UsersClock { now: "n".into(), timezone: "UTC".into(), device: false }),
        state: Some(json!({"count": 1})),
        ..Context::default()
    };
    let of = |parts: &[PlanContext]| {
        let plan = TurnPlan { tools: vec![], context: Some(parts.to_vec()), instructions: "x".into() };
        plan.select(context.clone())
    };
    assert_eq!(of(&PlanContext::ALL), context);
    assert!(of(&[PlanContext::Conversation]).is_empty());
    let notes = of(&[PlanContext::Notes]);
    assert_eq!(notes, Context { notes: context.notes.clone(), ..Context::default() });
    // The message itself, its tools and the results that it brings are not the router's to drop.
    let answer = json!({"toolCallId": "c", "name": "f", "arguments": "{}", "content": "12"});
    let own: Context = serde_json::from_value(json!({
        "about": [{"description": "The user's name", "value": "Ada"}],
        "tools": [{"name": "f", "description": "", "parameters": {}}],
        "toolAnswers": [answer],
    }))
    .unwrap();
    let plan = TurnPlan { tools: vec![], context: Some(vec![]), instructions: "x".into() };
    assert_eq!(plan.select(own.clone()), own);
}

#[test]
fn a_router_gets_the_tools_in_short() {
    let text = router_text([("time_now", "The time.\nMore about it."), ("web_fetch", &*"x".repeat(9_999))]);
    assert!(text.contains("- time_now: The time.\n") && !text.contains("More about it"), "{text}");
    assert!(text.len() < 2_000 && text.starts_with("<router>") && text.ends_with("</router>"), "{text}");
    assert!(router_text([]).contains("There are no tools."));
    let function = plan_function(&["time_now".to_owned()]);
    assert_eq!(function["function"]["name"], PLAN_FUNCTION);
    assert_eq!(function["function"]["parameters"]["properties"]["tools"]["items"]["enum"], json!(["time_now"]));
    assert!(plan_function(&[])["function"]["parameters"]["properties"]["tools"]["items"]["enum"].is_null());
    for part in PlanContext::ALL {
        assert_eq!(json!(part), part.as_str());
    }
}

fn message(role: Role) -> ConversationMessage {
    ConversationMessage { role, text: String::new() }
}

fn call(before: usize) -> PastCall {
    PastCall { name: "f".into(), arguments: "{}".into(), result: String::new(), before }
}

#[test]
fn a_window_begins_with_a_message_of_the_user() {
    use Role::{Assistant, User};
    let messages = [User, Assistant, User, Assistant].map(message);
    let calls = [1, 3, 4].map(call);
    let places = |max: usize| {
        let (messages, calls) = window(&messages, &calls, max);
        (messages.len(), calls.iter().map(|call| call.before).collect::<Vec<_>>())
    };
    assert_eq!(places(9), (4, vec![1, 3, 4]));
    assert_eq!(places(4), (4, vec![1, 3, 4]));
    assert_eq!(places(3), (2, vec![1, 2]));
    assert_eq!(places(2), (2, vec![1, 2]));
    assert_eq!(places(1), (0, vec![]));
    assert_eq!(places(0), (0, vec![]));
}

#[test]
fn the_last_exchange_begins_with_the_last_message_of_the_user() {
    use Role::{Assistant, User};
    for (roles, expected) in [(vec![], 0), (vec![Assistant], 0), (vec![User], 1), (vec![User, User, Assistant], 2)] {
        let messages: Vec<_> = roles.into_iter().map(message).collect();
        assert_eq!(last_exchange(&messages), expected);
    }
}

proptest! {
    #[test]
    fn whatever_a_router_writes_a_plan_names_only_tools_that_exist(text in "\\PC{0,200}") {
        if let Ok(plan) = read(&text) {
            prop_assert!(plan.tools.iter().all(|name| TOOLS.contains(&name.as_str())));
        }
    }

    #[test]
    fn a_plan_is_accepted_exactly_if_its_tools_exist_and_its_instructions_fit(
        tools in prop::collection::vec(prop::sample::select(vec!["time_now", "calendar_write", "web_fetch", "no_such"]), 0..6),
        instructions in "[a-z ]{0,60}",
        context in prop::option::of(prop::collection::vec(prop::sample::select(PlanContext::ALL.to_vec()), 0..4)),
    ) {
        let text = json!({"tools": tools, "instructions": instructions, "context": context}).to_string();
        let is_good = !tools.contains(&"no_such") && !instructions.trim().is_empty();
        let found = read(&text);
        prop_assert_eq!(found.is_ok(), is_good, "{:?}", found);
        if let Ok(plan) = found {
            prop_assert!(tools.iter().all(|name| plan.tools.iter().any(|kept| kept == name)));
            prop_assert!(plan.tools.iter().enumerate().all(|(at, name)| !plan.tools[..at].contains(name)));
            let again = read(&serde_json::to_string(&plan).unwrap());
            prop_assert_eq!(again, Ok(plan));
        }
    }

    #[test]
    fn a_window_is_the_end_of_the_conversation(users in prop::collection::vec(any::<bool>(), 0..12), max in 0..14_usize) {
        let messages: Vec<_> =
            users.iter().map(|is_user| message(if *is_user { Role::User } else { Role::Assistant })).collect();
        let calls: Vec<_> = (0..=messages.len()).map(call).collect();
        let (kept, kept_calls) = window(&messages, &calls, max);
        prop_assert!(kept.len() <= max && messages.ends_with(kept));
        if kept.len() < messages.len() {
            prop_assert!(kept.first().is_none_or(|first| first.role == Role::User));
            prop_assert!(kept_calls.iter().all(|call| (1..=kept.len()).contains(&call.before)));
        } else {
            prop_assert_eq!(kept_calls, calls);
        }
    }
}
