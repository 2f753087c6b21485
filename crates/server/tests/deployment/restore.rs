//! The Jobs that restore a backup use the database, the keys and the volumes of the server that they restore, and move the
//! files of that server only after the whole backup has been checked.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
};

use serde_json::{Value, json};

use super::{
    manifests::{Overlay, Pod, items, selects, strings},
    namespace,
    network::{connects, labels_of},
    settings::setting,
};

/// Each overlay that has a server, and the file of its Job.
const JOBS: &[(&str, &str)] = &[
    ("small", "restore/small.yaml"),
    ("agentrun", "restore/agentrun.yaml"),
    ("production", "restore/production.yaml"),
];
/// The keys of the configuration that say where parts of a backup are, with their variables. Jobs do not read the file.
const PLACES: [(&str, &str, &str); 3] = [
    ("attachments", "directory", "OSTLER_ATTACHMENTS__DIRECTORY"),
    ("mesh", "pki_directory", "OSTLER_MESH__PKI_DIRECTORY"),
    ("secrets", "key_file", "OSTLER_SECRETS__KEY_FILE"),
];

fn server_of<'a>(pods: &'a [Pod<'a>]) -> &'a Pod<'a> {
    pods.iter().find(|pod| pod.labels["app.kubernetes.io/component"] == "server").unwrap()
}

/// The first container that is not one of the start.
fn container_of<'a>(pod: &Pod<'a>) -> &'a Value {
    items(&pod.spec["containers"]).next().unwrap()
}

fn variables_of<'a>(pod: &Pod<'a>) -> BTreeMap<&'a str, &'a Value> {
    items(&container_of(pod)["env"]).map(|one| (one["name"].as_str().unwrap(), one)).collect()
}

/// Where the container mounts each claim.
fn claims_of<'a>(pod: &Pod<'a>) -> BTreeSet<(&'a str, &'a str)> {
    let mut claims = BTreeSet::new();
    for mount in items(&container_of(pod)["volumeMounts"]) {
        let volume = items(&pod.spec["volumes"]).find(|volume| volume["name"] == mount["name"]).unwrap();
        if let Some(claim) = volume["persistentVolumeClaim"]["claimName"].as_str() {
            claims.insert((claim, mount["mountPath"].as_str().unwrap()));
        }
    }
    claims
}

/// The Secret that is mounted at `/run/credentials`.
fn keys_of<'a>(pod: &Pod<'a>) -> &'a Value {
    let mounts = items(&container_of(pod)["volumeMounts"]).find(|mount| mount["mountPath"] == "/run/credentials");
    let name = &mounts.unwrap()["name"];
    let volume = items(&pod.spec["volumes"]).find(|volume| volume["name"] == *name).unwrap();
    &volume["secret"]
}

#[test]
fn a_restore_job_mounts_and_reads_what_its_server_does() {
    for &(name, file) in JOBS {
        let (overlay, job) = (Overlay::read(name), Overlay::of_file(file));
        let (servers, restores) = (overlay.pods(), job.pods());
        let (server, restore) = (server_of(&servers), &restores[0]);
        assert_eq!(job.manifests.len(), 1, "{file}");
        assert_eq!(job.manifests[0]["metadata"]["namespace"], namespace(&overlay), "{file}");
        assert_eq!(job.manifests[0]["spec"]["backoffLimit"], 0, "{file}: another attempt needs an empty database");

        let claims = claims_of(server);
        assert!(!claims.is_empty(), "{file}");
        assert_eq!(claims_of(restore), claims, "{file}");
        assert_eq!(keys_of(restore)["secretName"], keys_of(server)["secretName"], "{file}");
        let is_key = |item: &Value| item["key"] == "secrets-key" && item["path"] == "secrets-key";
        assert!(items(&keys_of(restore)["items"]).any(is_key), "{file}");

        let (of_server, of_restore) = (variables_of(server), variables_of(restore));
        for variable in ["DATABASE_URL", "OSTLER_DATA_DIR", "CREDENTIALS_DIRECTORY"] {
            assert_eq!(of_restore[variable], of_server[variable], "{file}");
        }
        for (section, key, variable) in PLACES {
            let place = of_restore.get(variable).map(|one| one["value"].as_str().unwrap().to_owned());
            assert_eq!(place, setting(&overlay, section, key), "{file}: {variable}");
        }
        let mounts = items(&container_of(restore)["volumeMounts"]).map(|mount| mount["name"].to_string());
        let mounted: BTreeSet<String> = mounts.collect();
        let volumes: BTreeSet<String> = restore.volumes().map(|volume| volume["name"].to_string()).collect();
        assert_eq!(mounted, volumes, "{file}: every volume is mounted");
    }
}

#[test]
fn a_restore_job_connects_to_the_database_and_to_no_server() {
    for &(name, file) in JOBS {
        let (overlay, job) = (Overlay::read(name), Overlay::of_file(file));
        let labels = labels_of(&job, "migration").unwrap();
        if let Some(postgres) = labels_of(&overlay, "postgres") {
            assert!(connects(&overlay, labels, postgres, 5432), "{file}");
        }
        assert!(!connects(&overlay, labels, labels_of(&overlay, "server").unwrap(), 4747), "{file}");
        for service in overlay.of("Service") {
            let selector = json!({"matchLabels": service["spec"]["selector"]});
            assert!(!selects(&selector, labels), "{file}: a Service would forward requests to it");
        }
    }
}

/// Runs the script of a Job with all its paths below `root`. A function takes the place of the program: it records its
/// arguments, and fails unless the file `intact` exists. Returns whether the script succeeded, and the recorded lines.
fn run_script(file: &'static str, root: &Path) -> (bool, Vec<String>) {
    const PROGRAM: &str = r#"ostler() {
  echo "$*" >> calls
  test -e intact
}
"#;
    let job = Overlay::of_file(file);
    let pods = job.pods();
    let words = strings(&container_of(&pods[0])["command"]);
    let [shell, flags, script] = &words[..] else { panic!("{file}: a shell, its flags and the script") };
    let mut script = script.replace("exec ostler", "ostler");
    for folder in ["/var/lib/", "/key/", "/backup/"] {
        assert!(script.contains(folder), "{file}: {folder}");
        script = script.replace(folder, &format!("{}{folder}", root.display()));
    }
    let _ = fs::remove_file(root.join("calls"));
    let mut command = Command::new(shell);
    command.arg(flags).arg(format!("{PROGRAM}{script}")).current_dir(root);
    let is_success = command.status().unwrap().success();
    let calls = fs::read_to_string(root.join("calls")).unwrap_or_default();
    (is_success, calls.lines().map(str::to_owned).collect())
}

/// The folder that the script has made for the files of the replaced server.
fn replaced_in(volume: &Path) -> Vec<String> {
    let names = fs::read_dir(volume).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("replaced-")).collect()
}

#[test]
fn a_restore_job_moves_files_of_the_server_only_after_it_has_checked_the_backup() {
    for &(name, file) in JOBS {
        let (volume, folders): (&str, &[&str]) = match name {
            "production" => ("var/lib/ostler-shared", &["attachments", "pki"]),
            _ => ("var/lib/ostler", &["data"]),
        };
        let temporary = tempfile::tempdir().unwrap();
        let (root, volume) = (temporary.path(), temporary.path().join(volume));
        for folder in ["var/lib/ostler", "key", "backup"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        for folder in folders {
            fs::create_dir_all(volume.join(folder)).unwrap();
            fs::write(volume.join(folder).join("old"), "").unwrap();
        }
        fs::write(root.join("key/identity"), "").unwrap();
        let files = format!("--identity {0}/key/identity {0}/backup/ostler.age", root.display());
        let (check, restore) = (format!("restore --check {files}"), format!("restore {files}"));

        assert_eq!(run_script(file, root), (false, vec![check.clone()]), "{file}: a damaged backup");
        assert!(folders.iter().all(|folder| volume.join(folder).join("old").exists()), "{file}");
        assert_eq!(replaced_in(&volume), [""; 0], "{file}");

        fs::write(root.join("intact"), "").unwrap();
        assert_eq!(run_script(file, root), (true, vec![check.clone(), restore.clone()]), "{file}");
        let found = replaced_in(&volume);
        let [replaced] = &found[..] else { panic!("{file}: one folder of replaced files, not {found:?}") };
        for folder in folders {
            assert!(!volume.join(folder).exists(), "{file}: {folder} is empty for the restore");
            assert!(volume.join(replaced).join(folder).join("old").exists(), "{file}: {folder}");
        }

        fs::remove_dir_all(volume.join(replaced)).unwrap();
        assert_eq!(run_script(file, root), (true, vec![check, restore]), "{file}: into an empty volume");
        assert_eq!(replaced_in(&volume), [""; 0], "{file}");
    }
}
