use std::{
    os::unix::fs::{PermissionsExt, symlink},
    sync::atomic::AtomicBool,
};

use tempfile::TempDir;

use super::*;

fn git(directory: &Path, arguments: &[&str]) -> String {
    let author = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"];
    let mut git = std::process::Command::new("git");
    let output = git.args(author).args(arguments).current_dir(directory).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A repository, a workspace and a directory of the runner's own.
struct Place {
    scratch: TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self { scratch: tempfile::tempdir().unwrap() };
        for folder in ["repository", "workspace", "own"] {
            std::fs::create_dir(place.path(folder)).unwrap();
        }
        git(&place.path("repository"), &["init", "--quiet", "--initial-branch=main"]);
        place
    }

    fn path(&self, below: &str) -> PathBuf {
        self.scratch.path().join(below)
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.path(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.path(file)).unwrap_or_default()
    }

    fn commit(&self) -> String {
        let repository = self.path("repository");
        git(&repository, &["add", "--all"]);
        git(&repository, &["commit", "--quiet", "-m", "one"]);
        git(&repository, &["rev-parse", "HEAD"])
    }

    fn order(&self, commit: &str, parts: &[(&str, &str)]) -> BundleOrder {
        let parts: Vec<_> = parts.iter().map(|(from, to)| json!({"subpath": from, "targetPath": to})).collect();
        let url = format!("file://{}", self.path("repository").display());
        BundleOrder {
            reference: RawJson::of(&json!({"kind": "gitbundle", "repoUrl": url, "bundles": parts})),
            commit_id: commit.to_owned(),
            directory: Some(self.path("own/bundle")),
            record_directory: None,
            protocols: vec!["file".into()],
            timeout_ms: 30_000,
            outgoing: OutgoingRules::default(),
            credential: None,
        }
    }

    async fn place(&self, commit: &str, parts: &[(&str, &str)]) -> Result<Value, String> {
        let placed = self.order(commit, parts).place(&self.path("workspace")).await;
        for left in ["repository", "checkout", "credential"] {
            assert!(!self.path("own/bundle").join(left).exists(), "{left} is deleted");
        }
        placed.map_err(|failure| failure.rule_name().unwrap_or(failure.message.as_str()).to_owned())
    }
}

#[tokio::test]
async fn parts_of_the_commit_are_placed_and_an_agents_changes_stay() {
    let place = Place::new();
    place.write("repository/skills/review/run.sh", "one");
    std::fs::set_permissions(place.path("repository/skills/review/run.sh"), PermissionsExt::from_mode(0o755)).unwrap();
    symlink("run.sh", place.path("repository/skills/review/link")).unwrap();
    place.write("repository/README", "read me");
    let first = place.commit();
    place.write("repository/skills/review/run.sh", "two");
    let second = place.commit();
    let parts = [("skills", ".agents/skills"), ("README", "README.bundle")];
    let fact = place.place(&first, &parts).await.unwrap();
    assert_eq!((&fact["phase"], &fact["commitId"]), (&json!(PHASE_BUNDLE_READY), &json!(first)));
    let script = place.path("workspace/.agents/skills/review/run.sh");
    assert_eq!(place.read("workspace/.agents/skills/review/run.sh"), "one", "the commit decides, not the branch");
    assert_ne!(std::fs::metadata(&script).unwrap().permissions().mode() & 0o100, 0, "it can be executed");
    assert!(std::fs::symlink_metadata(script.with_file_name("link")).unwrap().is_symlink());
    assert_eq!(place.read("workspace/README.bundle"), "read me");
    // The next runner of the run finds what the agent has made of it.
    place.write("workspace/.agents/skills/review/run.sh", "changed");
    place.place(&first, &parts).await.unwrap();
    assert_eq!(place.read("workspace/.agents/skills/review/run.sh"), "changed");
    // Another commit replaces it.
    place.place(&second, &parts).await.unwrap();
    assert_eq!(place.read("workspace/.agents/skills/review/run.sh"), "two");
}

#[tokio::test]
async fn the_whole_repository_comes_without_its_git_folder() {
    let place = Place::new();
    place.write("repository/a/b", "deep");
    let commit = place.commit();
    place.place(&commit, &[(".", "all")]).await.unwrap();
    assert_eq!(place.read("workspace/all/a/b"), "deep");
    assert!(!place.path("workspace/all/.git").exists());
}

#[tokio::test]
async fn what_the_person_has_is_not_replaced_and_what_was_half_placed_is() {
    let place = Place::new();
    place.write("repository/a/b", "bundle");
    place.write("workspace/a/own", "mine");
    let commit = place.commit();
    assert_eq!(place.place(&commit, &[("a", "a")]).await.unwrap_err(), "resource-bundle-target");
    assert_eq!(place.read("workspace/a/own"), "mine");
    place.place(&commit, &[("a", "x")]).await.unwrap();
    // As a runner leaves it that was killed while it wrote.
    let record = place.read("own/bundle/placed.json").replace("\"isWhole\":true", "\"isWhole\":false");
    place.write("own/bundle/placed.json", &record);
    std::fs::remove_file(place.path("workspace/x/b")).unwrap();
    place.place(&commit, &[("a", "x")]).await.unwrap();
    assert_eq!(place.read("workspace/x/b"), "bundle");
}

#[tokio::test]
async fn no_link_leads_out_of_the_workspace_or_of_the_repository() {
    let place = Place::new();
    place.write("outside/secret", "secret");
    place.write("repository/a", "a");
    symlink(place.path("outside"), place.path("repository/way-out")).unwrap();
    let commit = place.commit();
    symlink(place.path("outside"), place.path("workspace/way-out")).unwrap();
    assert_eq!(place.place(&commit, &[("a", "way-out/a")]).await.unwrap_err(), "resource-bundle-target");
    assert!(!place.path("outside/a").exists());
    assert_eq!(place.place(&commit, &[("way-out/secret", "x")]).await.unwrap_err(), "resource-bundle-missing");
    assert_eq!(place.place(&commit, &[("way-out", "x")]).await.unwrap_err(), "resource-bundle-missing");
    assert!(!place.path("workspace/x").exists());
}

#[tokio::test]
async fn a_commit_or_a_path_that_is_not_there_is_reported() {
    let place = Place::new();
    place.write("repository/a", "a");
    let commit = place.commit();
    assert_eq!(place.place(&commit, &[("b", "b")]).await.unwrap_err(), "resource-bundle-missing");
    assert_eq!(place.place(&commit, &[("a/b", "b")]).await.unwrap_err(), "resource-bundle-missing");
    let absent = "0".repeat(40);
    assert_eq!(place.place(&absent, &[("a", "a")]).await.unwrap_err(), "workspace-git-commit");
}

#[tokio::test]
async fn runs_that_share_a_workspace_share_the_record_of_what_was_placed() {
    let place = Place::new();
    place.write("repository/a/b", "one");
    let first = place.commit();
    place.write("repository/a/b", "two");
    let second = place.commit();
    let run = |commit: &str, name: &str| BundleOrder {
        directory: Some(place.path(name)),
        record_directory: Some(place.path("shared")),
        ..place.order(commit, &[("a", "a")])
    };
    let workspace = place.path("workspace");
    run(&first, "own/first").place(&workspace).await.unwrap();
    // The directory of a run is deleted after the run; the workspace stays.
    std::fs::remove_dir_all(place.path("own/first")).unwrap();
    place.write("workspace/a/b", "changed");
    run(&first, "own/next").place(&workspace).await.unwrap();
    assert_eq!(place.read("workspace/a/b"), "changed");
    run(&second, "own/last").place(&workspace).await.unwrap();
    assert_eq!(place.read("workspace/a/b"), "two");
    // What the person has deleted comes back.
    std::fs::remove_dir_all(place.path("workspace/a")).unwrap();
    run(&second, "own/last").place(&workspace).await.unwrap();
    assert_eq!(place.read("workspace/a/b"), "two");
}

#[tokio::test]
async fn what_is_below_a_replaced_target_is_placed_again() {
    let place = Place::new();
    place.write("repository/a/b", "one");
    place.write("repository/c/d", "deep");
    let first = place.commit();
    place.write("repository/a/b", "two");
    let second = place.commit();
    place.place(&first, &[("a", "a")]).await.unwrap();
    place.place(&second, &[("c", "a/c")]).await.unwrap();
    place.place(&second, &[("a", "a")]).await.unwrap();
    place.place(&second, &[("c", "a/c")]).await.unwrap();
    assert_eq!((place.read("workspace/a/b"), place.read("workspace/a/c/d")), ("two".into(), "deep".into()));
}

#[tokio::test]
async fn only_the_parts_of_one_commit_are_written_to_the_disk() {
    let place = Place::new();
    place.write("repository/a/b", "b");
    place.write("repository/large", "not wanted");
    place.commit();
    place.write("repository/a/b", "bb");
    let commit = place.commit();
    let order = place.order(&commit, &[("a", "x")]);
    let bundle = ResourceBundle::read(&order.reference).unwrap();
    let (own, checkout) = (place.path("own"), place.path("own/checkout"));
    order.fetch(&bundle.source, &own, &checkout, Some(&bundle.parts)).await.unwrap();
    assert_eq!(place.read("own/checkout/a/b"), "bb");
    assert!(!checkout.join("large").exists() && !checkout.join(".git").exists());
    assert_eq!(git(&own.join("repository"), &["rev-list", "--count", &commit]), "1", "without the history");
}

#[test]
fn sizes_are_checked_before_anything_is_checked_out() {
    assert!(copy::check_sizes(Some(&[1, 2])).is_ok());
    assert!(matches!(copy::check_sizes(Some(&[])), Err(copy::CopyError::Missing)));
    assert!(matches!(copy::check_sizes(Some(&[300 * 1024 * 1024])), Err(copy::CopyError::TooLarge)));
    assert!(matches!(copy::check_sizes(Some(&vec![0; 10_001])), Err(copy::CopyError::TooLarge)));
    assert!(matches!(copy::check_sizes(None), Err(copy::CopyError::TooLarge)));
}

#[test]
fn a_copy_that_is_no_longer_wanted_stops_and_does_not_wait_for_the_lock() {
    let place = Place::new();
    place.write("checkout/a/b", "b");
    let order = place.order(&"0".repeat(40), &[("a", "a")]);
    let bundle = ResourceBundle::read(&order.reference).unwrap();
    let parts = bundle.parts.iter().map(|part| (part.clone(), order.placed(&bundle, part)));
    let placement = Placement {
        workspace: place.path("workspace"),
        checkout: place.path("checkout"),
        record_directory: place.path("own"),
        parts: parts.collect(),
    };
    placement.place(&AtomicBool::new(true)).unwrap_err();
    assert!(!place.path("workspace/a").exists());
    let holder = std::fs::File::create(place.path("own/lock")).unwrap();
    holder.lock().unwrap();
    placement.place(&AtomicBool::new(true)).unwrap_err();
    holder.unlock().unwrap();
    placement.place(&AtomicBool::new(false)).unwrap();
    assert_eq!(place.read("workspace/a/b"), "b");
    let stop = StopOnDrop(Arc::default());
    let is_stopped = stop.0.clone();
    drop(stop);
    assert!(is_stopped.load(std::sync::atomic::Ordering::Relaxed));
}

#[tokio::test]
async fn a_credential_that_a_killed_runner_left_is_deleted_at_the_next_start() {
    let place = Place::new();
    place.write("repository/a", "a");
    let commit = place.commit();
    place.place(&commit, &[("a", "a")]).await.unwrap();
    place.write("own/bundle/credential", "password=x");
    // Nothing is fetched this time; the helper checks what is left.
    place.place(&commit, &[("a", "a")]).await.unwrap();
}
