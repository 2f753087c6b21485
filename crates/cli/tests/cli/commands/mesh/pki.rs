//! `ostler pki`: keys are made by `init`, shown without being changed, and private keys are never sent.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;

use crate::fixtures::test_home::{Engine, TestHome};

/// The files of a directory and their modification times.
fn everything(directory: &Path) -> BTreeMap<PathBuf, (Vec<u8>, std::time::SystemTime)> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let files = entries.filter(|path| path.is_file());
    files
        .map(|path| {
            let known = (std::fs::read(&path).unwrap(), path.metadata().unwrap().modified().unwrap());
            (path, known)
        })
        .collect()
}

#[track_caller]
fn json_of(output: &Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn openssl(home: &TestHome, args: &[&str]) {
    let made = Command::new("openssl").args(args).current_dir(home.path("")).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

#[test]
fn keys_are_made_by_init_and_not_by_show() {
    let home = TestHome::new(Engine::Sqlite);
    let none = home.cli(None, &["pki", "show"]);
    assert_eq!(none.status.code(), Some(4), "{none:?}");
    assert!(!home.data_dir.exists(), "nothing was made");
    // The first command, before there is a data directory.
    let made = json_of(&home.cli(None, &["pki", "init", "--mesh-issuer", "probe.test", "-o", "json"]));
    let pki = home.data_dir.join("pki");
    let before = (everything(&home.data_dir), everything(&pki));
    let shown = json_of(&home.cli(None, &["pki", "show", "-o", "json"]));
    assert_eq!((&shown, &shown["domain"]), (&made, &"probe.test".into()), "the domain that is here");
    let other = home.cli(None, &["pki", "show", "--mesh-issuer", "other.test"]);
    assert_eq!(other.status.code(), Some(4), "{other:?}");
    assert_eq!((everything(&home.data_dir), everything(&pki)), before, "to show is not to change");
    json_of(&home.cli(None, &["pki", "init", "--mesh-issuer", "second.test", "-o", "json"]));
    let several = home.cli(None, &["pki", "show"]);
    assert!(String::from_utf8_lossy(&several.stderr).contains("probe.test, second.test"), "{several:?}");
    assert_eq!(several.status.code(), Some(2));
}

#[test]
fn invalid_files_are_reported_as_invalid_input() {
    let home = TestHome::new(Engine::Sqlite);
    openssl(
        &home,
        &[
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-subj",
            "/CN=x",
            "-keyout",
            "x.key",
            "-out",
            "x.crt",
        ],
    );
    let mut args = vec!["pki", "init", "--mesh-issuer", "probe.test"];
    args.extend(["--root", "x.crt", "--registry", "x.crt", "--issuer", "x.crt", "--issuer-key", "x.key"]);
    let refused = home.cli(None, &args);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("not of probe.test"), "{refused:?}");
    assert!(!home.data_dir.join("pki").exists(), "nothing was made");
}

/// A certificate that OpenSSL signs with another authority's key.
#[test]
fn an_issuer_on_another_curve_is_rejected_before_anything_is_written() {
    let home = TestHome::new(Engine::Sqlite);
    let made = |name: &str, curve: &str, common_name: &str, above: Option<&str>, length: u8| {
        let (key, certificate) = (format!("{name}.key"), format!("{name}.crt"));
        let (curve, subject) = (format!("ec_paramgen_curve:{curve}"), format!("/CN={common_name}"));
        let constraints = format!("basicConstraints=critical,CA:TRUE,pathlen:{length}");
        let mut args =
            vec!["req", "-x509", "-newkey", "ec", "-pkeyopt", &curve, "-nodes", "-sha384", "-subj", &subject];
        args.extend(["-keyout", &key, "-out", &certificate, "-days", "9", "-addext", &constraints]);
        args.extend(["-addext", "keyUsage=critical,digitalSignature,keyCertSign,cRLSign"]);
        let signer = above.map(|above| (format!("{above}.crt"), format!("{above}.key")));
        if let Some((certificate, key)) = &signer {
            args.extend(["-CA", certificate, "-CAkey", key]);
        }
        openssl(&home, &args);
    };
    made("root", "P-384", "Root", None, 2);
    made("registry", "P-384", "Registry", Some("root"), 1);
    let import = |issuer: &str| {
        let (certificate, key) = (format!("{issuer}.crt"), format!("{issuer}.key"));
        let mut args = vec!["pki", "init", "--mesh-issuer", "probe.test", "--root", "root.crt"];
        args.extend(["--registry", "registry.crt", "--issuer", &certificate, "--issuer-key", &key]);
        home.cli(None, &args)
    };
    made("short", "P-256", "probe.test", Some("registry"), 0);
    let refused = import("short");
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("has to be on P-384"), "{refused:?}");
    assert!(!home.data_dir.join("pki").exists(), "nothing was made");
    made("issuer", "P-384", "probe.test", Some("registry"), 0);
    let taken = import("issuer");
    assert!(taken.status.success(), "{taken:?}");
}

#[test]
fn only_public_keys_are_sent_and_a_dry_run_shows_what_would_be_revoked() {
    let home = TestHome::new(Engine::Sqlite);
    let server = home.serve();
    openssl(&home, &["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", "key.pem"]);
    openssl(&home, &["pkey", "-in", "key.pem", "-pubout", "-out", "pub.pem"]);
    let ostler = |args: &[&str]| home.cli(Some(&server), args);
    let aid = "alice.localhost.test";
    let private = ostler(&["pki", "issue", aid, "--public-key", "key.pem"]);
    assert_eq!(private.status.code(), Some(2), "{private:?}");
    assert!(String::from_utf8_lossy(&private.stderr).contains("nothing was sent"), "{private:?}");
    let unknown = ostler(&["pki", "revoke", aid, "--dry-run"]);
    assert_eq!(unknown.status.code(), Some(4), "{unknown:?}");
    let issued = json_of(&ostler(&["pki", "issue", aid, "--public-key", "pub.pem", "-o", "json"]));
    let dry = ["pki", "revoke", aid, "--dry-run", "-o", "json"];
    let would = json_of(&ostler(&dry));
    assert_eq!((&would["wouldRevoke"], &would["serial"]), (&true.into(), &issued["serial"]));
    assert_eq!(json_of(&ostler(&dry))["wouldRevoke"], true, "it was not done");
    assert!(ostler(&["pki", "revoke", aid, "--yes"]).status.success());
    assert_eq!(json_of(&ostler(&dry))["wouldRevoke"], false);
}
