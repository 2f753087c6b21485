use super::*;

fn operators(name: &str) -> NamedProfile<'_> {
    NamedProfile { name, tenant_id: None }
}

/// The hint about a turn that has failed by this rule, with the usual kind of the rule.
fn of_rule(rule: Rule, profile: &NamedProfile<'_>) -> Option<String> {
    hint_of_rule(rule, rule.row().kind, profile)
}

#[test]
fn a_command_of_a_hint_names_the_tenant_that_owns_the_profile() {
    let tenants = NamedProfile { name: "mine", tenant_id: Some("acme") };
    let hint = of_rule(Rule::ProfileKey, &tenants).unwrap();
    assert!(hint.contains("`ostler profiles set mine --tenant acme < key.txt`"), "{hint}");
    let hint = of_rule(Rule::ProfileProgram, &tenants).unwrap();
    assert!(hint.ends_with("`ostler profiles config mine --tenant acme --file FILE`"), "{hint}");
    let failure = Failure::rule(Rule::CredentialDropped, "set it again").detail("profile", "mine");
    for (failure, command) in [
        (failure.clone().detail("tenantId", "a b"), "`ostler profiles set mine --tenant 'a b'`"),
        (failure, "`ostler profiles set mine`"),
    ] {
        let hint = hint_of(&failure).unwrap();
        assert!(hint.ends_with(command), "{hint}");
    }
}

#[test]
fn a_profile_whose_program_is_missing_is_to_be_changed() {
    let hint = of_rule(Rule::ProfileProgram, &operators("mine")).unwrap();
    let command = "`ostler profiles config mine --file FILE`";
    assert!(hint.starts_with("install the program") && hint.ends_with(command), "{hint}");
    let codex = of_rule(Rule::AgentProgram, &operators("codex")).unwrap();
    assert!(codex.starts_with("install the program") && !codex.contains("profiles config"), "{codex}");
    assert!(codex.contains("`ostler doctor`"), "{codex}");
}

#[test]
fn only_a_missing_program_is_to_be_installed() {
    let git = of_rule(Rule::WorkspaceGitMissing, &operators("mine")).unwrap();
    assert!(git.starts_with("install git on the server"), "{git}");
    let full = of_rule(Rule::AgentHome, &operators("mine")).unwrap();
    assert!(full.contains("free space") && !full.contains("install"), "{full}");
    let store = of_rule(Rule::StoreDiskFull, &operators("mine")).unwrap();
    assert!(store.contains("free space") && !store.contains("install"), "{store}");
}

#[test]
fn a_hint_about_a_profile_without_a_name_keeps_the_placeholder() {
    let hint = of_rule(Rule::ProfileKey, &operators("")).unwrap();
    assert!(hint.contains("`ostler profiles set PROFILE < key.txt`"), "{hint}");
    assert!(hint.contains("docs/provider-profiles.md"), "{hint}");
}

#[test]
fn only_a_profile_without_a_credential_is_to_be_given_one() {
    let command = "`ostler profiles set mine < key.txt`";
    let hint = of_rule(Rule::ProfileKey, &operators("mine")).unwrap();
    assert!(hint.contains(command) && hint.contains("docs/provider-profiles.md"), "{hint}");
    let model = of_rule(Rule::ProfileKey, &operators("model")).unwrap();
    assert!(model.contains("docs/model.md") && !model.contains("docs/provider-profiles.md"), "{model}");
    for (rule, named) in [
        (Rule::WorkspaceGitCredential, "git-credentials"),
        (Rule::ToolSecretMissing, "secretScope"),
        (Rule::SecretDamaged, "`ostler profiles set mine`, or restore the key"),
        (Rule::CredentialDropped, "`ostler profiles set mine`"),
    ] {
        let hint = of_rule(rule, &operators("mine")).unwrap();
        assert!(hint.contains(named) && !hint.contains(command), "{rule}: {hint}");
    }
    for rule in [Rule::ProfileConfigMissing, Rule::ProfileSecretMissing, Rule::ProfileTemplate] {
        assert_eq!(of_rule(rule, &operators("mine")), None, "{rule}: its message names the command");
    }
}

#[test]
fn an_untrusted_certificate_has_a_hint_of_its_own() {
    let hint = hint_of(&Failure::rule(Rule::ServerCertificate, "https://x does not answer")).unwrap();
    assert!(hint.contains("OSTLER_CA_FILE"), "{hint}");
}

#[test]
fn an_error_shows_its_kind_its_trace_id_and_a_hint() {
    let failure = Failure::not_found("run").detail("traceId", "trc_1").detail("rule", "run-unknown");
    assert_eq!(
        render(&failure, Paint::PLAIN),
        "error: no such run\n  kind: not-found\n  rule: run-unknown\n  trace: trc_1\n\
         hint: check the id; `ostler ps --all` lists the sessions you may see, `ostler runs list` the runs\n"
    );
}

#[test]
fn the_hint_of_a_failure_replaces_that_of_its_kind() {
    let text = render(&usage("no prompt was given", "give the agent a task"), Paint::PLAIN);
    assert_eq!(text, "error: no prompt was given\n  kind: schema-invalid\nhint: give the agent a task\n");
}

#[test]
fn hints_about_a_store_that_cannot_be_opened_fit_without_a_server() {
    for (kind, rule, named) in [
        (FailureKind::NotFound, Rule::StoreAbsent, "--data-dir"),
        (FailureKind::InfraFailed, Rule::StoreDiskFull, "free space"),
        (FailureKind::InfraFailed, Rule::Store, "write beside it"),
        (FailureKind::StateConflict, Rule::Store, "stop the other process"),
    ] {
        let hint = hint_of(&Failure::rule(rule, "it went wrong").with_kind(kind)).unwrap();
        assert!(hint.contains(named) && !hint.contains("doctor"), "{rule}: {hint}");
    }
}

#[test]
fn hints_about_agents_name_commands() {
    for (rule, named) in [
        (Rule::WebhookUnknown, "ostler webhooks set"),
        (Rule::WebhookDisabled, "ostler webhooks replay AGENT --dead"),
        (Rule::AgentRetired, "ostler agents list"),
        (Rule::NotOwner, "ostler agents show"),
        (Rule::ManifestMissing, "ostler agents update AGENT --manifest"),
        (Rule::ManifestInvalid, "docs/agents.md"),
        (Rule::ManifestTooLarge, "docs/agents.md"),
    ] {
        let hint = hint_of(&Failure::rule(rule, "it went wrong")).unwrap();
        assert!(hint.contains(named), "{rule}: {hint}");
    }
}

#[test]
fn no_rule_has_a_general_hint() {
    let general: Vec<_> =
        FailureKind::ALL.iter().filter(|row| !fits_every_rule(row.kind)).map(|row| hint(row.kind)).collect();
    for row in Rule::ALL {
        let kinds = [row.kind].into_iter().chain(row.hints_by_kind.iter().map(|(kind, _)| *kind));
        for kind in kinds {
            let hint = hint_of(&Failure::rule(row.rule, "it went wrong").with_kind(kind)).unwrap_or_default();
            assert!(!general.contains(&hint.as_str()), "{}: {hint}", row.name);
        }
    }
}

#[test]
fn hints_name_pages_and_commands_that_exist() {
    let root = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let command = <crate::Cli as clap::CommandFactory>::command();
    let of_rules = Rule::ALL.iter().flat_map(|row| row.hint.into_iter().chain(row.hints_by_kind.iter().map(|h| h.1)));
    for text in of_rules.chain(FailureKind::ALL.iter().map(|row| hint(row.kind))) {
        for page in text.split([' ', ',', ';', ')', '(']).filter(|word| word.starts_with("docs/")) {
            assert!(root.join(page).exists(), "{text}: {page}");
        }
        for words in text.split('`').filter_map(|code| code.strip_prefix("ostler ")) {
            let verb = words.split(' ').next().unwrap();
            if verb.starts_with("--") {
                continue;
            }
            let found = command.get_subcommands().find(|c| c.get_name() == verb);
            let found = found.unwrap_or_else(|| panic!("{text}: no command {verb}"));
            let next = words.split(' ').nth(1).filter(|_| found.has_subcommands());
            let known = |next: &str| found.get_subcommands().any(|c| c.get_name() == next);
            assert!(next.is_none_or(known), "{text}: {next:?}");
        }
    }
}

#[test]
fn a_page_that_a_hint_names_is_shown_by_the_server() {
    let of_server = |rule| Failure::rule(rule, "too much").detail("traceId", "trc_1");
    let line = guide_line(&of_server(Rule::BodySize), "http://127.0.0.1:4747/");
    assert_eq!(line.as_deref(), Some("  read: http://127.0.0.1:4747/guide/limits\n"));
    assert_eq!(guide_line(&of_server(Rule::Timezone), "http://127.0.0.1:4747"), None, "its hint names no page");
    let offline = Failure::rule(Rule::BodySize, "too much");
    assert_eq!(guide_line(&offline, "http://127.0.0.1:4747"), None, "no server has reported it");
}

#[test]
fn the_hint_about_a_stopping_server_is_true_of_one_server_and_of_several() {
    let hint = hint(FailureKind::Draining);
    assert!(hint.contains("after its next start") && hint.contains("other servers of its store"), "{hint}");
    assert!(!hint.contains("will respond"), "nobody knows that there is another: {hint}");
}

/// `OSTLER_BLESS=1` rewrites the page.
#[test]
fn every_kind_has_a_hint() {
    let failure = |kind| Failure::new(kind, "it went wrong").detail("traceId", "trc_1");
    let page: String = FailureKind::ALL.iter().map(|row| render(&failure(row.kind), Paint::PLAIN) + "\n").collect();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/snapshots/error_kinds.txt");
    if std::env::var_os("OSTLER_BLESS").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    assert!(std::fs::read_to_string(path).unwrap_or_default() == page, "run the test with OSTLER_BLESS=1");
}

#[test]
fn every_problem_has_a_line() {
    let problems = ["one is wrong", "two is wrong"].map(|message| Failure::invalid(Rule::Config, message));
    let text = render(&Failure::check_all(problems.into()).unwrap_err(), Paint::PLAIN);
    assert!(text.starts_with("error: one is wrong\n       two is wrong\n  kind: schema-invalid\n"), "{text}");
    let many = (0..30).map(|number| Failure::invalid(Rule::Config, format!("{number} is wrong"))).collect();
    let text = render(&Failure::check_all(many).unwrap_err(), Paint::PLAIN);
    assert!(
        text.contains("       19 is wrong\n       more problems are reported") && !text.contains("20 is"),
        "{text}"
    );
}

#[test]
fn a_message_cannot_drive_the_terminal() {
    assert!(!render(&Failure::new(FailureKind::Internal, "\x1b]0;x\x07"), Paint::PLAIN).contains('\x1b'));
}
