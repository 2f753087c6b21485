//! OpenSSL accepts the certificates that `ostler pki` makes, and rejects them once they are revoked.

use std::{
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;

use crate::fixtures::{
    http::Http,
    process::Server,
    test_home::{Engine, TestHome, both_engines, mode},
};

#[track_caller]
fn stdout_of(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The directory with the files for OpenSSL.
struct OpenSsl<'a> {
    home: &'a TestHome,
    server: Server,
}

impl OpenSsl<'_> {
    fn put(&self, file: &str, text: &str) {
        std::fs::write(self.home.path(file), text).unwrap();
    }

    /// Whether it succeeded, and its output on both streams.
    fn openssl(&self, arguments: &str) -> (bool, String) {
        let output = Command::new("openssl").args(arguments.split(' ')).current_dir(self.home.path("")).output();
        let output = output.expect("openssl, the judge of this test, can be run");
        let printed = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&printed).into_owned())
    }

    #[track_caller]
    fn succeed(&self, arguments: &str) -> String {
        let (succeed, printed) = self.openssl(arguments);
        assert!(succeed, "openssl {arguments}: {printed}");
        printed
    }

    fn ostler(&self, args: &[&str]) -> String {
        stdout_of(self.home.cli(Some(&self.server), args))
    }

    /// A key made by OpenSSL, certified under a name.
    fn issue(&self, name: &str) {
        self.succeed(&format!("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out {name}.key"));
        self.succeed(&format!("pkey -in {name}.key -pubout -out {name}.pub"));
        let certificate =
            self.ostler(&["pki", "issue", &format!("{name}.probe.test"), "--public-key", &format!("{name}.pub")]);
        self.put(&format!("{name}.crt"), &certificate);
    }

    /// The current revocation list, which the issuer has signed.
    fn fetch_list(&self) {
        let list = Http::with_token(&self.server.address, None).get("/pki/crl.json").good();
        self.put("list.pem", list["crl_pem"].as_str().unwrap());
        let read = self.succeed("crl -in list.pem -CAfile chain.pem -noout -text");
        assert!(read.contains("verify OK"), "{read}");
    }

    fn verify(&self, name: &str) -> (bool, String) {
        self.openssl(&format!(
            "verify -x509_strict -check_ss_sig -CAfile root.pem -untrusted chain.pem -crl_check -CRLfile list.pem {name}.crt"
        ))
    }

    /// The OCSP status of a certificate.
    fn ocsp(&self, name: &str) -> String {
        let url = format!("{}/pki/ocsp", self.server.url());
        let printed = self.succeed(&format!(
            "ocsp -issuer issuer.pem -cert {name}.crt -url {url} -CAfile root.pem -verify_other chain.pem"
        ));
        assert!(printed.contains("Response verify OK"), "{printed}");
        printed
    }
}

fn private_keys(directory: &Path) -> Vec<u32> {
    let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|extension| extension != "crt")).map(|path| mode(&path)).collect()
}

#[both_engines]
fn openssl_accepts_a_certificate_until_it_is_revoked(engine: Engine) {
    let mut home = TestHome::new(engine);
    let (init, show) = (["pki", "init", "-o", "json"], ["pki", "show", "-o", "json"]);
    let domain = ["--mesh-issuer", "probe.test"];
    let missing = home.cli(None, &[&show[..], &domain].concat());
    assert_eq!(missing.status.code(), Some(4), "{missing:?}");
    let made = stdout_of(home.cli(None, &[&init[..], &domain].concat()));
    for again in [&init, &show] {
        assert_eq!(stdout_of(home.cli(None, &[&again[..], &domain].concat())), made, "what is there stays");
    }
    let keys = private_keys(&home.data_dir.join("pki"));
    assert!(!keys.is_empty() && keys.iter().all(|mode| *mode == 0o600), "{keys:?}");
    home.flags = domain.map(str::to_owned).into();
    let openssl = OpenSsl { server: home.serve(), home: &home };
    let chain = Http::with_token(&openssl.server.address, None).get("/pki/chain").body;
    openssl.put("chain.pem", &chain);
    openssl.put("issuer.pem", chain.split_inclusive("-----END CERTIFICATE-----").next().unwrap());
    std::fs::copy(home.data_dir.join("pki/root.crt"), home.path("root.pem")).unwrap();
    let printed: Value = serde_json::from_str(&made).unwrap();
    let shown = openssl.succeed("x509 -in root.pem -noout -fingerprint -sha256").replace(':', "").to_lowercase();
    assert!(shown.contains(&printed["rootFingerprint"].as_str().unwrap().replace("sha256:", "")), "{shown} {printed}");

    for name in ["alice", "bobby"] {
        openssl.issue(name);
        let key = openssl.succeed(&format!("x509 -in {name}.crt -noout -pubkey"));
        assert_eq!(key, std::fs::read_to_string(home.path(&format!("{name}.pub"))).unwrap());
        let subject = openssl.succeed(&format!("x509 -in {name}.crt -noout -subject"));
        assert!(subject.contains(&format!("CN = {name}.probe.test")), "{subject}");
    }
    openssl.fetch_list();
    for name in ["alice", "bobby"] {
        assert!(openssl.verify(name).0, "{}", openssl.verify(name).1);
        assert!(openssl.ocsp(name).contains(&format!("{name}.crt: good")));
    }

    openssl.ostler(&["pki", "revoke", "alice.probe.test", "--reason", "key-compromise", "--yes"]);
    openssl.fetch_list();
    let (valid, printed) = openssl.verify("alice");
    assert!(!valid && printed.contains("certificate revoked"), "{printed}");
    let printed = openssl.ocsp("alice");
    assert!(printed.contains("alice.crt: revoked") && printed.contains("Reason: keyCompromise"), "{printed}");
    assert!(openssl.verify("bobby").0 && openssl.ocsp("bobby").contains("bobby.crt: good"), "nobody else is");
    // Another key under the same name replaces the former one.
    std::fs::rename(home.path("bobby.crt"), home.path("last.crt")).unwrap();
    openssl.issue("bobby");
    openssl.fetch_list();
    assert!(openssl.verify("bobby").0 && !openssl.verify("last").0);
    let printed = openssl.ocsp("last");
    assert!(printed.contains("last.crt: revoked") && printed.contains("Reason: superseded"), "{printed}");
    let listed = openssl.ostler(&["pki", "list", "-o", "jsonl"]);
    let revoked = |line: &str| serde_json::from_str::<Value>(line).unwrap()["revokedAt"].is_string();
    let states: Vec<(bool, bool)> = listed.lines().map(|line| (line.contains("alice."), revoked(line))).collect();
    assert!(states.contains(&(true, true)) && states.contains(&(false, false)), "{listed}");
}
