//! `ostler pki` with OpenSSL as the judge: it believes what the command line makes, and no longer what it has revoked.

use std::{
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;

use crate::{
    home::{Engine, Home, both_engines, mode},
    http::Http,
    process::Server,
};

#[track_caller]
fn printed(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A directory in which OpenSSL finds what it judges.
struct Judge<'a> {
    home: &'a Home,
    server: Server,
}

impl Judge<'_> {
    fn put(&self, file: &str, text: &str) {
        std::fs::write(self.home.path(file), text).unwrap();
    }

    /// Whether it was content, and what it said on both streams.
    fn openssl(&self, arguments: &str) -> (bool, String) {
        let output = Command::new("openssl").args(arguments.split(' ')).current_dir(self.home.path("")).output();
        let output = output.expect("openssl, the judge of this test, can be run");
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&said).into_owned())
    }

    #[track_caller]
    fn content(&self, arguments: &str) -> String {
        let (content, said) = self.openssl(arguments);
        assert!(content, "openssl {arguments}: {said}");
        said
    }

    fn ostler(&self, args: &[&str]) -> String {
        printed(self.home.cli(Some(&self.server), args))
    }

    /// A key that OpenSSL made, certified under a name.
    fn issue(&self, name: &str) {
        self.content(&format!("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out {name}.key"));
        self.content(&format!("pkey -in {name}.key -pubout -out {name}.pub"));
        let certificate =
            self.ostler(&["pki", "issue", &format!("{name}.probe.test"), "--public-key", &format!("{name}.pub")]);
        self.put(&format!("{name}.crt"), &certificate);
    }

    /// The list of now; it is signed by the issuer.
    fn fetch_list(&self) {
        let list = Http::with_token(&self.server.address, None).get("/pki/crl.json").good();
        self.put("list.pem", list["crl_pem"].as_str().unwrap());
        let read = self.content("crl -in list.pem -CAfile chain.pem -noout -text");
        assert!(read.contains("verify OK"), "{read}");
    }

    fn verify(&self, name: &str) -> (bool, String) {
        self.openssl(&format!(
            "verify -x509_strict -check_ss_sig -CAfile root.pem -untrusted chain.pem -crl_check -CRLfile list.pem {name}.crt"
        ))
    }

    /// What the standard protocol says of a certificate.
    fn ocsp(&self, name: &str) -> String {
        let url = format!("{}/pki/ocsp", self.server.url());
        let said = self.content(&format!(
            "ocsp -issuer issuer.pem -cert {name}.crt -url {url} -CAfile root.pem -verify_other chain.pem"
        ));
        assert!(said.contains("Response verify OK"), "{said}");
        said
    }
}

fn private_keys(directory: &Path) -> Vec<u32> {
    let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|extension| extension != "crt")).map(|path| mode(&path)).collect()
}

#[both_engines]
fn openssl_believes_what_was_issued_until_it_is_revoked(engine: Engine) {
    let mut home = Home::new(engine);
    let (init, show) = (["pki", "init", "-o", "json"], ["pki", "show", "-o", "json"]);
    let domain = ["--mesh-issuer", "probe.test"];
    let missing = home.cli(None, &[&show[..], &domain].concat());
    assert_eq!(missing.status.code(), Some(4), "{missing:?}");
    let made = printed(home.cli(None, &[&init[..], &domain].concat()));
    for again in [&init, &show] {
        assert_eq!(printed(home.cli(None, &[&again[..], &domain].concat())), made, "what is there stays");
    }
    let keys = private_keys(&home.data_dir.join("pki"));
    assert!(!keys.is_empty() && keys.iter().all(|mode| *mode == 0o600), "{keys:?}");
    home.flags = domain.map(str::to_owned).into();
    let judge = Judge { server: home.serve(), home: &home };
    let chain = Http::with_token(&judge.server.address, None).get("/pki/chain").body;
    judge.put("chain.pem", &chain);
    judge.put("issuer.pem", chain.split_inclusive("-----END CERTIFICATE-----").next().unwrap());
    std::fs::copy(home.data_dir.join("pki/root.crt"), home.path("root.pem")).unwrap();
    let said: Value = serde_json::from_str(&made).unwrap();
    let shown = judge.content("x509 -in root.pem -noout -fingerprint -sha256").replace(':', "").to_lowercase();
    assert!(shown.contains(&said["rootFingerprint"].as_str().unwrap().replace("sha256:", "")), "{shown} {said}");

    for name in ["alice", "bobby"] {
        judge.issue(name);
        let key = judge.content(&format!("x509 -in {name}.crt -noout -pubkey"));
        assert_eq!(key, std::fs::read_to_string(home.path(&format!("{name}.pub"))).unwrap());
        let subject = judge.content(&format!("x509 -in {name}.crt -noout -subject"));
        assert!(subject.contains(&format!("CN = {name}.probe.test")), "{subject}");
    }
    judge.fetch_list();
    for name in ["alice", "bobby"] {
        assert!(judge.verify(name).0, "{}", judge.verify(name).1);
        assert!(judge.ocsp(name).contains(&format!("{name}.crt: good")));
    }

    judge.ostler(&["pki", "revoke", "alice.probe.test", "--reason", "key-compromise", "--yes"]);
    judge.fetch_list();
    let (believed, said) = judge.verify("alice");
    assert!(!believed && said.contains("certificate revoked"), "{said}");
    let said = judge.ocsp("alice");
    assert!(said.contains("alice.crt: revoked") && said.contains("Reason: keyCompromise"), "{said}");
    assert!(judge.verify("bobby").0 && judge.ocsp("bobby").contains("bobby.crt: good"), "nobody else is");
    // Another key under the same name takes the place of the last.
    std::fs::rename(home.path("bobby.crt"), home.path("last.crt")).unwrap();
    judge.issue("bobby");
    judge.fetch_list();
    assert!(judge.verify("bobby").0 && !judge.verify("last").0);
    let said = judge.ocsp("last");
    assert!(said.contains("last.crt: revoked") && said.contains("Reason: superseded"), "{said}");
    let listed = judge.ostler(&["pki", "list", "-o", "jsonl"]);
    let revoked = |line: &str| serde_json::from_str::<Value>(line).unwrap()["revokedAt"].is_string();
    let states: Vec<(bool, bool)> = listed.lines().map(|line| (line.contains("alice."), revoked(line))).collect();
    assert!(states.contains(&(true, true)) && states.contains(&(false, false)), "{listed}");
}
