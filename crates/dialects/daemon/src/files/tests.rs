//! What no client and no agent can make the server do with files.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use ostler_protocol::daemon::files::{FILE_READ_BYTES_MAX, TextWrite};
use tempfile::TempDir;

use super::{
    read::TextFile,
    write::{Expected, NewText, WriteLocks, WrittenText},
    *,
};

/// A workspace with a secret beside it.
struct Scene {
    above: TempDir,
    root: PathBuf,
    locks: WriteLocks,
}

impl Scene {
    fn new() -> Self {
        let above = tempfile::tempdir().unwrap();
        let root = above.path().canonicalize().unwrap().join("work");
        fs::create_dir_all(root.join("in/deep")).unwrap();
        fs::create_dir(above.path().join("outside")).unwrap();
        fs::write(above.path().join("outside/secret"), "secret").unwrap();
        fs::write(root.join("in/text"), "one\ntwo\n").unwrap();
        Self { above, root, locks: WriteLocks::default() }
    }

    fn outside(&self, name: &str) -> PathBuf {
        self.above.path().join("outside").join(name)
    }

    fn path(&self, text: &str) -> WorkspacePath {
        WorkspacePath::parse(text, self.root.to_str().unwrap()).unwrap()
    }

    fn handle(&self) -> Root {
        Root::open(&self.root).unwrap()
    }

    fn read(&self, path: &str) -> Result<TextFile, Failure> {
        read::text(&self.handle(), &self.path(path), FILE_READ_BYTES_MAX)
    }

    fn write(&self, path: &str, content: &str, expected: &Expected) -> Result<WrittenText, Failure> {
        let new = NewText { content, write: Some(TextWrite::default()), expected, temporary: ".ostler-1.tmp" };
        write::text(&self.handle(), &self.locks, &self.path(path), &new)
    }

    fn glob(&self, pattern: &str) -> Matches {
        let bounds = SearchBounds { results_max: 100, is_late: &|| false };
        walk::glob(&self.handle(), &self.path("."), &GlobPattern::parse(pattern).unwrap(), &bounds).unwrap()
    }

    /// Every name below the workspace.
    fn names(&self) -> Vec<String> {
        let (mut names, mut waiting) = (vec![], vec![self.root.clone()]);
        while let Some(directory) = waiting.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                names.push(path.strip_prefix(&self.root).unwrap().to_str().unwrap().to_owned());
                if path.is_dir() && !path.is_symlink() {
                    waiting.push(path);
                }
            }
        }
        names.sort();
        names
    }
}

#[track_caller]
fn refused<T>(result: Result<T, Failure>, kind: &str) {
    let failure = result.err().expect("a failure");
    assert_eq!(failure.details.as_ref().unwrap()["errorKind"], kind, "{failure}");
}

fn make_pipe(path: &Path) {
    rustix::fs::mkfifoat(rustix::fs::CWD, path, rustix::fs::Mode::from_raw_mode(0o644)).unwrap();
}

#[test]
fn links_inside_the_workspace_are_followed_and_links_out_of_it_are_not() {
    let scene = Scene::new();
    symlink(scene.outside("secret"), scene.root.join("leak")).unwrap();
    symlink(scene.outside(""), scene.root.join("away")).unwrap();
    symlink("../../outside", scene.root.join("in/up")).unwrap();
    symlink("text", scene.root.join("in/fine")).unwrap();
    symlink("in", scene.root.join("also")).unwrap();
    symlink("self", scene.root.join("self")).unwrap();
    symlink("/proc/self/root/etc/passwd", scene.root.join("magic")).unwrap();
    for path in ["in/text", "in/fine", "also/text", "also/fine"] {
        assert_eq!(scene.read(path).unwrap().text, "one\ntwo\n", "{path}");
    }
    for path in ["leak", "away/secret", "in/up/secret", "self", "magic"] {
        refused(scene.read(path), "symlink_escape");
        refused(read::stat(&scene.handle(), &scene.path(path)), "symlink_escape");
    }
    refused(read::list(&scene.handle(), &scene.path("away")), "symlink_escape");
    let looped = scene.read("self").unwrap_err().message;
    assert!(looped.contains("form a loop"), "{looped}");
    for path in ["away/new", "in/up/new", "leak", "in/fine"] {
        refused(scene.write(path, "x", &Expected::Anything), "symlink_escape");
    }
    assert_eq!(fs::read_to_string(scene.outside("secret")).unwrap(), "secret");
    assert!(!scene.outside("new").exists());
    scene.write("also/new", "x", &Expected::Absent).unwrap();
    assert_eq!(fs::read_to_string(scene.root.join("in/new")).unwrap(), "x");
}

#[test]
fn a_link_that_is_swapped_in_while_files_are_used_leads_nowhere() {
    let scene = Scene::new();
    fs::create_dir(scene.root.join("real")).unwrap();
    fs::write(scene.root.join("real/secret"), "ours").unwrap();
    symlink(scene.outside(""), scene.root.join("link")).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let place = |name: &str| scene.root.join(name);
            while !is_over.load(Ordering::Relaxed) {
                fs::rename(place("real"), place("swap")).unwrap();
                fs::rename(place("link"), place("real")).unwrap();
                fs::rename(place("real"), place("link")).unwrap();
                fs::rename(place("swap"), place("real")).unwrap();
            }
        });
        let handle = scene.handle();
        let (mut read, mut written) = (0, 0);
        for n in 0..500 {
            if let Ok(found) = read::text(&handle, &scene.path("real/secret"), FILE_READ_BYTES_MAX) {
                assert_eq!(found.text, "ours");
                read += 1;
            }
            let temporary = format!(".ostler-{n}.tmp");
            let new = NewText { content: "ours", write: None, expected: &Expected::Anything, temporary: &temporary };
            written +=
                usize::from(n % 10 == 0 && write::text(&handle, &scene.locks, &scene.path("real/new"), &new).is_ok());
            let bounds = SearchBounds { results_max: 10, is_late: &|| false };
            let found =
                walk::glob(&handle, &scene.path("."), &GlobPattern::parse("*/other").unwrap(), &bounds).unwrap();
            assert!(found.paths.is_empty());
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(read > 0 && written > 0, "{read} {written}");
    });
    let outside: Vec<_> = fs::read_dir(scene.outside("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(outside, ["secret"]);
    assert_eq!(fs::read_to_string(scene.outside("secret")).unwrap(), "secret");
}

#[test]
fn pipes_devices_sockets_and_directories_are_not_opened() {
    let scene = Scene::new();
    make_pipe(&scene.root.join("pipe"));
    let _socket = std::os::unix::net::UnixListener::bind(scene.root.join("socket")).unwrap();
    for path in ["pipe", "socket", "in", "."] {
        refused(scene.read(path), "parse_error");
        refused(read::bytes(&scene.handle(), &scene.path(path), 0, 10), "parse_error");
        refused(scene.write(path, "x", &Expected::Anything), "parse_error");
    }
    // A device may only be created by root; elsewhere the check is the same as for pipes.
    let device = scene.root.join("null");
    let mode = rustix::fs::Mode::from_raw_mode(0o666);
    let number = rustix::fs::makedev(1, 3);
    if rustix::fs::mknodat(rustix::fs::CWD, &device, rustix::fs::FileType::CharacterDevice, mode, number).is_ok() {
        refused(scene.read("null"), "parse_error");
        refused(scene.write("null", "x", &Expected::Anything), "parse_error");
    }
    let kind = |path: &str| read::stat(&scene.handle(), &scene.path(path)).unwrap().kind;
    use ostler_protocol::daemon::files::EntryKind::*;
    assert_eq!([kind("pipe"), kind("socket"), kind("in"), kind("in/text")], [Other, Other, Directory, File]);
}

#[test]
fn a_write_replaces_a_name_and_not_the_file_that_other_names_share() {
    let scene = Scene::new();
    let (text, other) = (scene.root.join("in/text"), scene.outside("other"));
    fs::hard_link(&text, &other).unwrap();
    fs::set_permissions(&text, fs::Permissions::from_mode(0o4751)).unwrap();
    let read = scene.read("in/text").unwrap();
    let written = scene.write("in/text", "three\n", &Expected::Hash(read.hash)).unwrap();
    assert!(!written.created);
    assert_eq!(fs::read_to_string(&other).unwrap(), "one\ntwo\n");
    assert_eq!(fs::read_to_string(&text).unwrap(), "three\n");
    assert_eq!(fs::metadata(&text).unwrap().mode() & 0o7777, 0o751, "its mode stays, without special bits");
    assert_eq!(scene.read("in/text").unwrap().hash, written.hash);
    scene.write("in/new", "x", &Expected::Absent).unwrap();
    assert_eq!(fs::metadata(scene.root.join("in/new")).unwrap().mode() & 0o7777, 0o600);
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn configuration_is_not_written_under_any_name_unless_the_caller_may_change_it() {
    let scene = Scene::new();
    for folder in [".ostler", ".qwen/agents", "conf"] {
        fs::create_dir_all(scene.root.join(folder)).unwrap();
    }
    for file in [".ostler/settings.json", "conf/settings.json"] {
        fs::write(scene.root.join(file), "{}").unwrap();
        set_mode(&scene.root.join(file), 0o644);
    }
    symlink("../conf/settings.json", scene.root.join(".qwen/settings.json")).unwrap();
    symlink(".ostler", scene.root.join("alias")).unwrap();
    // Links to files that do not exist, through another link, and in a folder of configuration.
    symlink("../conf/later.toml", scene.root.join("in/step")).unwrap();
    fs::create_dir(scene.root.join(".codex")).unwrap();
    symlink("../in/step", scene.root.join(".codex/config.toml")).unwrap();
    symlink(scene.root.join("conf/absolute.json"), scene.root.join(".mcp.json")).unwrap();
    symlink("../../in/reviewer.md", scene.root.join(".qwen/agents/reviewer.md")).unwrap();
    fs::create_dir_all(scene.root.join("in/skill/more")).unwrap();
    symlink("../in/skill", scene.root.join(".qwen/skill")).unwrap();
    symlink("../../nested.md", scene.root.join("in/skill/nested.md")).unwrap();
    symlink("..", scene.root.join(".qwen/top")).unwrap();
    symlink("../.qwen/agents", scene.root.join("in/agents")).unwrap();
    fs::hard_link(scene.root.join(".ostler/settings.json"), scene.root.join("in/shared")).unwrap();
    let write = |path: &str, scope| {
        let new = NewText { content: "x", write: None, expected: &Expected::Anything, temporary: ".ostler-3.tmp" };
        write::text(&scene.handle().scoped(scope), &scene.locks, &scene.path(path), &new)
    };
    for path in [
        ".ostler/settings.json",
        "./.ostler//new",
        "in/../.ostler/new",
        ".Ostler/settings.json",
        ".qwen",
        ".qwen/agents/new.md",
        ".codex/config.toml",
        ".mcp.json",
        "alias/settings.json",
        "in/agents/new.md",
        "conf/settings.json",
        "in/shared",
        ".env",
        ".qwen/.env",
        "conf/later.toml",
        "conf/absolute.json",
        "in/reviewer.md",
        "in/skill/new.md",
        "in/skill/more/new.md",
        "nested.md",
    ] {
        refused(write(path, WriteScope::Ordinary), "permission_denied");
    }
    let handle = scene.handle().scoped(WriteScope::Ordinary);
    let edit = |path: &str, hash: &str| {
        write::edit(&handle, &scene.locks, &scene.path(path), (hash, ".ostler-4.tmp"), |_| Ok("x".to_owned()))
    };
    let hash = scene.read("conf/settings.json").unwrap().hash;
    for path in ["alias/settings.json", "conf/settings.json"] {
        refused(edit(path, &hash), "permission_denied");
        assert_eq!(scene.read(path).unwrap().text, "{}");
    }
    for path in ["in/text", "conf/other", "in/.ostler", "in/.env", "new"] {
        write(path, WriteScope::Ordinary).unwrap();
    }
    write("alias/settings.json", WriteScope::Everything).unwrap();
    assert_eq!(scene.read(".ostler/settings.json").unwrap().text, "x");
}

#[test]
fn another_name_of_a_private_file_or_of_the_servers_is_not_opened() {
    let scene = Scene::new();
    let data_dir = scene.above.path().join("data");
    fs::create_dir_all(data_dir.join("git-credentials")).unwrap();
    let server_files = ServerFiles::new(data_dir.clone(), ["token", "ostler.db"].into_iter());
    let handle = scene.handle().hiding(Some(server_files));
    let secret = scene.outside("secret");
    for (number, (file, mode)) in [
        (data_dir.join("token"), 0o600),
        (data_dir.join("ostler.db"), 0o644),
        (data_dir.join("git-credentials/key"), 0o644),
        (secret.clone(), 0o600),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("in/shared-{number}");
        fs::write(&file, "secret").unwrap();
        set_mode(&file, mode);
        fs::hard_link(&file, scene.root.join(&name)).unwrap();
        let path = scene.path(&name);
        refused(read::text(&handle, &path, FILE_READ_BYTES_MAX), "permission_denied");
        refused(read::bytes(&handle, &path, 0, 10), "permission_denied");
        let new = NewText { content: "x", write: None, expected: &Expected::Anything, temporary: ".ostler-5.tmp" };
        refused(write::text(&handle, &scene.locks, &path, &new), "permission_denied");
    }
    // As in a store of packages.
    set_mode(&secret, 0o644);
    assert_eq!(read::text(&handle, &scene.path("in/shared-3"), FILE_READ_BYTES_MAX).unwrap().text, "secret");
    // A private file without another name.
    set_mode(&scene.root.join("in/text"), 0o600);
    assert_eq!(read::text(&handle, &scene.path("in/text"), FILE_READ_BYTES_MAX).unwrap().text, "one\ntwo\n");
}

#[test]
fn a_write_that_is_refused_changes_nothing_and_leaves_nothing() {
    let scene = Scene::new();
    let before = scene.names();
    let stale = Expected::Hash(ostler_protocol::daemon::files::content_hash(b"stale"));
    refused(scene.write("in/text", "x", &Expected::Absent), "file_already_exists");
    refused(scene.write("in/text", "x", &stale), "hash_mismatch");
    refused(scene.write("in/none", "x", &stale), "path_not_found");
    refused(scene.write("none/new", "x", &Expected::Absent), "path_not_found");
    refused(scene.write("in/text/new", "x", &Expected::Absent), "path_not_found");
    let large = "x".repeat(5 * 1024 * 1024 + 1);
    refused(scene.write("in/large", &large, &Expected::Absent), "file_too_large");
    scene.write("in/large", &large[1..], &Expected::Absent).unwrap();
    fs::remove_file(scene.root.join("in/large")).unwrap();
    let edit = |old: &'static str, hash: &str| {
        let change = move |text: &str| replace_once(text, Edit { old_text: old, new_text: "x" });
        write::edit(&scene.handle(), &scene.locks, &scene.path("in/text"), (hash, ".ostler-2.tmp"), change)
    };
    let hash = scene.read("in/text").unwrap().hash;
    refused(edit("none", &hash), "text_not_found");
    refused(edit("o", &hash), "ambiguous_text_match");
    assert_eq!(scene.names(), before);
    assert_eq!(scene.read("in/text").unwrap().text, "one\ntwo\n");
    edit("two", &hash).unwrap();
    assert_eq!(scene.read("in/text").unwrap().text, "one\nx\n");
    refused(edit("x", &hash), "hash_mismatch");
    assert_eq!(scene.names(), before);
}

#[test]
fn of_concurrent_writers_with_the_same_hash_one_wins() {
    let scene = Scene::new();
    for round in 0..20 {
        let expected = Expected::Hash(scene.read("in/text").unwrap().hash);
        let write = |writer: usize| {
            let (content, temporary) = (format!("{round} {writer}"), format!(".ostler-{writer}.tmp"));
            let new = NewText { content: &content, write: None, expected: &expected, temporary: &temporary };
            let written = write::text(&scene.handle(), &scene.locks, &scene.path("in/text"), &new);
            written.is_ok().then_some(content)
        };
        let won: Vec<_> = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..4).map(|writer| scope.spawn(move || write(writer))).collect();
            writers.into_iter().filter_map(|writer| writer.join().unwrap()).collect()
        });
        assert_eq!(won, [scene.read("in/text").unwrap().text]);
    }
}

#[test]
fn a_search_ends_and_stays_inside() {
    let scene = Scene::new();
    symlink(scene.outside(""), scene.root.join("away")).unwrap();
    symlink(".", scene.root.join("in/loop")).unwrap();
    let mut deep = scene.root.join("in/deep");
    for _ in 0..70 {
        deep.push("d");
    }
    fs::create_dir_all(&deep).unwrap();
    assert_eq!(scene.glob("**/text").paths, ["in/text"]);
    assert_eq!(scene.glob("*").paths, ["away", "in"]);
    assert_eq!(scene.glob("**/secret").paths, Vec::<String>::new());
    assert_eq!(scene.glob("away/*").paths, Vec::<String>::new());
    let bounds = |results_max, is_late| SearchBounds { results_max, is_late };
    let all = GlobPattern::parse("**").unwrap();
    let few = walk::glob(&scene.handle(), &scene.path("in"), &all, &bounds(2, &|| false)).unwrap();
    assert!(few.truncated && few.paths.len() == 2 && few.paths.iter().all(|path| path.starts_with("in/")));
    assert!(walk::glob(&scene.handle(), &scene.path("in"), &all, &bounds(100, &|| true)).unwrap().truncated);
    refused(walk::glob(&scene.handle(), &scene.path("away"), &all, &bounds(9, &|| false)), "symlink_escape");
    let hostile = format!("{}x", "**/*".repeat(30));
    assert!(scene.glob(&hostile).paths.is_empty());
    assert_eq!(scene.glob(&"{a,*}".repeat(30)).paths, ["away", "in"]);
}

#[test]
fn a_workspace_that_became_a_link_is_not_opened() {
    let scene = Scene::new();
    fs::rename(&scene.root, scene.above.path().join("moved")).unwrap();
    symlink(scene.outside(""), &scene.root).unwrap();
    refused(Root::open(&scene.root), "io_error");
}
