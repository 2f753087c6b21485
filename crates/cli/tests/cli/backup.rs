//! A backup as `docs/operating.md` describes it: taken from a server that writes, restored, verified and served.

use std::{fs, os::unix::fs::PermissionsExt, thread};

use crate::{
    home::{Engine, Home},
    http::Http,
    process::eventually,
    runner::Writer,
};

#[test]
fn a_copy_taken_while_the_server_writes_is_whole() {
    let home = Home::new(Engine::Sqlite).without_runner();
    let server = home.serve();
    let mut http = Http::new(&server);
    let mut writer = Writer::new(&mut http, "runner-a");
    let run_id = writer.run_id.clone();
    let restored = Home::new(Engine::Sqlite).without_runner();
    fs::create_dir(&restored.data_dir).unwrap();
    fs::set_permissions(&restored.data_dir, PermissionsExt::from_mode(0o700)).unwrap();
    let copy = restored.data_dir.join("ostler.db");
    thread::scope(|scope| {
        let mut own = Http::new(&server);
        scope.spawn(move || writer.write_until_cut_off(&mut own));
        eventually("there is something to copy", || (http.events(&run_id).len() > 100).then_some(()));
        home.execute(&format!("VACUUM INTO '{}'", copy.display()));
        for file in ["token", "signing-key"] {
            fs::copy(home.data_dir.join(file), restored.data_dir.join(file)).unwrap();
        }
        server.kill();
    });
    restored.assert_verified();
    let server = restored.serve();
    let mut http = Http::new(&server);
    assert!(http.events(&run_id).len() > 100, "the operator's token and the events are there");
    let mut next = Writer::new(&mut http, "runner-b");
    next.claim(&mut http);
    let batch = next.next_batch();
    assert_eq!(next.append(&mut http, &batch).unwrap().status, 200, "it takes new work");
    server.stop();
    restored.assert_verified();
}
