//! The README's transcript is the real output.

use crate::fixtures::{
    pty::Terminal,
    snapshot::mask,
    test_home::{Engine, TestHome},
};

#[test]
fn the_readme_shows_the_real_output() {
    let readme = include_str!("../../../../../README.md");
    let block = readme.split("```text\n").nth(1).unwrap().split("```").next().unwrap();
    let (typed, shown) = block.split_at(block.find("run run_").unwrap());
    let prompt = typed.split('\'').nth(1).unwrap();

    let home = TestHome::on_disk(Engine::Sqlite);
    let server = home.serve();
    let terminal = Terminal::start(&home, &server, &["run", "--session", "disk", prompt], &[]);
    terminal.shows("allow this?");
    terminal.types("y\n");
    let ended = terminal.ends();
    // With the default server, suggested commands have no flags.
    let flags = format!(" --server {} --data-dir {}", server.url(), home.data_dir.display());
    assert_eq!(mask(&home, &ended.screen.replace(&flags, "")), mask(&home, shown));
}
