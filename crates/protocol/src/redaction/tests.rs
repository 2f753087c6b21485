use super::*;

#[test]
fn credentials_disappear_and_json_stays_json() {
    let redactor = Redactor::new(&["hunter2-known"]);
    for secret in [
        r#"{"text":"key sk-abcdefghij0123456789 end"}"#,
        r#"{"url":"postgres://me:hunter2pw@db/x"}"#,
        r#"{"url":"postgres:\/\/me:hunter2pw@db\/x"}"#,
        r#"{"url":"https://me:p@hunter2pw@db/x"}"#,
        r#"{"url":"https://hunter2pwhunter2pw@db/x"}"#,
        r#"{"api_key":"hunter2pw","n":1}"#,
        r#"{"accessToken" : "hunter2pw","n":1}"#,
        r#"{"password":"a\"hunter2pw","n":1}"#,
        r#"{"password":"\u0068unter2pw","n":"\u0068unter2-known"}"#,
        r#"{"pass\u0077ord":"hunter2pw"}"#,
        r#"{"secret":["hunter2pw",["hunter2pw"]],"n":["x"]}"#,
        r#"{"githubToken":"hunter2pwhunter2pw"}"#,
        r#"{"text":"Authorization: Bearer hunter2pw.abc"}"#,
        r#"{"text":"curl -H 'X-Api-Key: hunter2pw' x"}"#,
        r#"{"text":"export OPENAI_API_KEY=hunter2pw"}"#,
        r#"{"text":"{\"password\": \"hunter2pw\"}"}"#,
        r#"{"text":"{\"password\": \"a\\\"hunter2pw\"}"}"#,
        r#"{"text":"it said {\"password\": \"hunter2pw\"} to me"}"#,
        r#"{"text":"it is hunter2-known"}"#,
        r#"{"text":"-----BEGIN PRIVATE KEY-----\nhunter2pw\n-----END PRIVATE KEY-----"}"#,
        r#"{"text":"-----BEGIN RSA PRIVATE KEY-----\nhunter2pw and cut","next":"x"}"#,
        r#"{"jwt":"eyJhbGciOiJI.eyJzdWIiOiIx.hunter2pwxx"}"#,
        r#"{"sk-hunter2pwhunter2pw":1}"#,
        r#"{"text":"DB_PASS=hunter2pw ./run"}"#,
        r#"{"DB_PASS":"hunter2pw","n":1}"#,
        r#"{"dbPass":"hunter2pw","n":1}"#,
        r#"{"text":"user: me\npassword: hunter2pw\n"}"#,
        r#"{"text":"db-password : hunter2pw, next"}"#,
        r#"{"text":"Set-Cookie: sid=hunter2pw; HttpOnly"}"#,
        r#"{"text":"< set-cookie: a=b; Path=/, sid=hunter2pw\r\n"}"#,
        r#"{"headers":{"Set-Cookie":"sid=hunter2pw"},"n":1}"#,
        r#"{"text":"//registry.npmjs.org/:_authToken=npm_hunter2"}"#,
        r#"{"text":"use npm_hunter2 now"}"#,
        r#"{"text":"GET /a/sk%2Dhunter2pwhunter2pw/b"}"#,
        r#"{"text":"GET /a?x=%73k-hunter2pwhunter2pw"}"#,
        r#"{"text":"GET /a/%2568unter2-known"}"#,
        r#"{"text":"GET /a/hunter2%2Dknown"}"#,
        r#"{"text":"GET /x?password%3Dhunter2pw"}"#,
        r#"{"dbpass":"hunter2pw","n":1}"#,
        r#"{"secretKey":"hunter2pw","n":1}"#,
        r#"{"headers":[["set-cookie","sid=hunter2pw"],["etag","x"]]}"#,
        r#"{"headers":["Authorization" , "Hunter2 hunter2"]}"#,
        r#"{"headers":[{"name":"Cookie","value" : "sid=hunter2pw"}]}"#,
        r#"{"text":"[[\"set-cookie\",\"sid=hunter2pw\"],[\"a"}"#,
        r#"{"text":"GET /npm%5Fhunter2abcdefghij"}"#,
    ] {
        let clean = redactor.redact_json(secret);
        let text = clean.replace("\\u0068", "h");
        assert!(!text.contains("hunter2") && !clean.contains("abcdefghij"), "{secret}: {clean}");
        assert!(clean.contains("[redacted]"), "{clean}");
        serde_json::from_str::<serde_json::Value>(&clean).unwrap_or_else(|e| panic!("{clean}: {e}"));
    }
    let number = redactor.redact_json(r#"{"password" : 1234 , "n":[1]}"#);
    assert_eq!(number, r#"{"password" : "[redacted]" , "n":[1]}"#);
}

#[test]
fn a_value_that_is_learnt_is_known_from_then_on() {
    let redactor = Redactor::new(&["hunter2"]);
    let text = r#"{"text":"hunter2, hunter2-too, a \"quoted\" one and short"}"#;
    assert!(redactor.redact_json(text).contains("[redacted]-too"));
    redactor.learn(["hunter2-too", "a \"quoted\" one", "short"]);
    assert_eq!(redactor.redact_json(text), r#"{"text":"[redacted], [redacted], [redacted] and short"}"#);
    assert_eq!(redactor.redact("hunter2-too hunter2"), "[redacted] [redacted]");
}

#[test]
fn plain_text_loses_its_credentials_too() {
    let redactor = Redactor::new(&[]);
    for (text, clean) in [
        ("at postgres://me:pw@db/x", "at postgres://[redacted]@db/x"),
        (r#"bad body: {"password": "hunter2"}"#, r#"bad body: {"password": "[redacted]"}"#),
        (r#"said "{\"password\":\"hunter2\"}""#, r#"said "{\"password\":"[redacted]"}""#),
        ("PASSWORD=hunter2 make", "PASSWORD=[redacted] make"),
        ("DB_PASS=\"hunter2abc\" make", "DB_PASS=\"[redacted]\" make"),
        ("DB_PASS=\"a\\\"hunter2\" make", "DB_PASS=\"[redacted]\" make"),
        ("DB_PASS='hunter2abc' make", "DB_PASS=\"[redacted]\" make"),
        ("export DB_PASS=\"hunter2 abc\"", "export DB_PASS=\"[redacted]\""),
        ("$env:DB_PASS=\"hunter2\"", "$env:DB_PASS=\"[redacted]\""),
        ("DB_PASS = \"hunter2\"", "DB_PASS = \"[redacted]\""),
        ("DB_PASS = x", "DB_PASS = [redacted]"),
        ("it has \"DB_PASS\": \"hunter2\", so", "it has \"DB_PASS\": \"[redacted]\", so"),
        ("db_pass: \"hunter2\"", "db_pass: \"[redacted]\""),
        ("DBPASS=hunter2 make", "DBPASS=[redacted] make"),
        ("MY_DBPASS=hunter\\ 2 make", "MY_DBPASS=[redacted] make"),
        ("TOKEN=\"hunter2abc\"", "TOKEN=\"[redacted]\""),
        ("GITHUB_TOKEN=hunter2abc make", "GITHUB_TOKEN=[redacted] make"),
        ("token = 'hunter2abchunter2'", "token = '[redacted]'"),
        ("SECRET_KEY=\"hunter2\"", "SECRET_KEY=\"[redacted]\""),
        ("password = x", "password = [redacted]"),
        ("password := 'hunter2'", "password := \"[redacted]\""),
        ("password: correct horse battery\nuser: me", "password: [redacted]\nuser: me"),
        ("password = correct horse battery", "password = [redacted]"),
        ("  db_pass: hunter2 and more", "  db_pass: [redacted]"),
        ("vault/password: hunter2 abc", "vault/password: [redacted]"),
        ("vault/db_pass: hunter2abc", "vault/db_pass: [redacted]"),
        ("a/b password: correct horse battery", "a/b password: [redacted]"),
        ("vault/password = correct horse battery", "vault/password = [redacted]"),
        // As `grep -r . /run/secrets` prints it.
        ("/run/secrets/db_password:correct horse battery staple", "/run/secrets/db_password:[redacted]"),
        ("vault/password: the horse is a battery", "vault/password: [redacted]"),
        ("use npm_x or npm_abcdefghij", "use [redacted] or [redacted]"),
        ("GET /npm%5Fabcdefghij", "GET /[redacted]"),
        ("[('set-cookie', 'sid=abcdef123')]", "[('set-cookie', '[redacted]')]"),
    ] {
        assert_eq!(redactor.redact(text), clean);
    }
}

#[test]
fn ordinary_text_is_left_alone() {
    let redactor = Redactor::new(&[]);
    for text in [
        "the secret of good soup",
        "a basic understanding of bearer certificates",
        "see https://example.org/a:b",
        "ask-me-anything",
        "tokens: 12",
        "password: required field",
        "password: optional, at least 12 characters",
        "Password: must contain a digit",
        "secret: String, password: Option<u64>",
        "wrong password: try again",
        "COMPASS=north BYPASS=1 PWD=/home/me pass=12 fail=0",
        "a cookie: a small text that a browser keeps",
        "npm_config_registry npm_package_name npm_execpath npm_lifecycle_event",
        "GET /a%20b/c%2Fd?e=100%25 and 50% of 3%ab",
        "if password == expected && token != previous_token {",
        "let password = read_password(file)?; password = None",
        "token = parser.next_token; nextToken=\"0123456789abcdef0123\" max_tokens=4096",
        "the test pass: 12, fail: 0; first pass = 3",
        "src/password: no such file or directory",
        "./config/db_pass: the file is not UTF-8 text",
        "src/old.password: this is a directory, not a file",
        "src/password: the file is larger than 16 bytes",
        "src/password: this is not a regular file",
        "src/db_pass: the system denies access",
        "cat: password: No such file or directory",
    ] {
        assert_eq!(redactor.redact(text), text);
    }
    for json in [
        r#"{"text":"Password:","stream":"stdout"}"#,
        r#"{"text":"[sudo] password for me: ","next":"x"}"#,
        r#"{"secretScope":{"toolCredentials":[]},"secretRef":{"name":"agentrun-v01-provider-codex"}}"#,
        r#"{"secret":{"name":"agentrun-v01-provider-codex","keys":["auth.json"]}}"#,
        r#"{"totalTokens":12,"token":"hel","nextPageToken":"0123456789abcdef0123"}"#,
        r#"{"text":"\u001b[1mbold\u001b[0m","password":null}"#,
        r#"{"text":"struct A { password: String, secret: u8 }"}"#,
        r#"{"bypass":"north-gate-12","pass":"12 of 12","compass":"n1"}"#,
        r#"{"vary":["cookie","accept"],"allow":["authorization","content-type"]}"#,
    ] {
        assert_eq!(redactor.redact_json(json), json);
    }
}

proptest::proptest! {
    #[test]
    fn prose_and_its_escapes_are_left_alone(words in proptest::collection::vec("[a-z]{1,12}[,.:;!?]?", 0..20)) {
        let redactor = Redactor::new(&[]);
        let text = words.join(" ");
        // Several words behind `password:` may be a passphrase, unless they begin as a description does.
        for name in ["password: must", "Password: required", "secret:", "api_key:"] {
            let text = format!("{name} {text}");
            proptest::prop_assert_eq!(redactor.redact(&text), text.as_str());
        }
        let escaped = utf8_percent_encode(&text, percent_encoding::NON_ALPHANUMERIC).to_string();
        proptest::prop_assert_eq!(redactor.redact(&escaped), escaped.as_str());
    }

    #[test]
    fn a_known_value_is_found_however_it_is_escaped(value in "[!-~]{6,20}", before in "[a-z/]{0,8}", upper: bool) {
        let redactor = Redactor::new(&[&value]);
        let escaped: String = value.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let escaped = if upper { escaped } else { escaped.to_lowercase() };
        let text = format!("GET /{before}{escaped} end");
        let clean = redactor.redact(&text);
        proptest::prop_assert!(clean.contains(MASK), "{}", clean);
        proptest::prop_assert!(!clean.contains(&escaped), "{}", clean);
    }
}

#[test]
fn a_known_value_that_decoding_completes_is_replaced() {
    let redactor = Redactor::new(&["foo bar baz"]);
    let text = r#"{"q":"password=hunter2hunter2&x=%66oo bar baz"}"#;
    let redacted = redactor.redact_json(text);
    assert!(redacted.contains(MASK) && !redacted.contains("foo bar baz"), "{redacted}");
}

#[test]
fn a_known_value_in_a_key_of_ours_does_not_break_the_structure() {
    // A poor password, as people choose them.
    let redactor = Redactor::new(&["secret"]);
    let typed = r#"{"secretScope":{"secretRef":{"name":"my-secret"}},"n":1}"#;
    let clean = r#"{"secretScope":{"secretRef":{"name":"my-[redacted]"}},"n":1}"#;
    assert_eq!(redactor.redact_json_values(typed), clean);
    // The outermost fields are ours, what they hold is the caller's.
    let payload = r#"{"secretName":["a secret"],"secret-1":1,"value":{"secretName":{}},"secretEnd":true}"#;
    let clean = r#"{"secretName":["a [redacted]"],"[redacted]-1":1,"value":{"[redacted]Name":{}},"secretEnd":true}"#;
    assert_eq!(redactor.redact_json_payload(payload), clean);
    assert!(redactor.redact_json(payload).starts_with(r#"{"[redacted]Name""#));
    // The name of a field still decides about its value.
    assert_eq!(redactor.redact_json_values(r#"{"password":"x"}"#), r#"{"password":"[redacted]"}"#);
}
