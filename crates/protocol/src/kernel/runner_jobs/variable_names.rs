//! Which names the short-lived variables of a job may have (ADR 76). Callers who may order a job are not the operator, whose key
//! the agent holds: no variable may decide which code runs outside of a tool's sandbox, where the agent connects to, or which
//! certificates it trusts.

use crate::{Failure, Rule, kernel::provider_profiles::AgentConfig};

/// Names that begin like this are for Ostler, the cluster and Codex.
const OWN_PREFIXES: [&str; 4] = ["OSTLER_", "AGENTRUN_", "KUBERNETES_", "CODEX_"];
/// The last word of a credential's name. No program takes code, an address or a certificate from such a variable.
const CREDENTIAL_WORDS: [&str; 5] = ["TOKEN", "KEY", "SECRET", "PASSWORD", "PASSPHRASE"];
/// How names begin that loaders, shells, interpreters, git, ssh and package managers read.
const DENIED_PREFIXES: [&str; 26] = [
    "LD_", "DYLD_", "GLIBC_", "GCONV_", "MALLOC_", "BASH", "ZDOTDIR", "PYTHON", "PERL", "RUBY", "NODE_", "BUN_",
    "DENO_", "NPM_", "PIP_", "UV_", "CARGO_", "RUST", "JAVA_", "JDK_", "_JAVA_", "DOTNET_", "GIT_", "SSH_", "CURL_",
    "XDG_",
];
/// How a word of a denied name ends: `HTTPS_PROXY`, `GOPATH`, `NODE_EXTRA_CA_CERTS`, `AWS_CONFIG_FILE`.
const DENIED_WORD_ENDINGS: [&str; 35] = [
    "PROXY",
    "PATH",
    "HOME",
    "SHELL",
    "EDITOR",
    "VISUAL",
    "PAGER",
    "BROWSER",
    "PRELOAD",
    "OPT",
    "OPTS",
    "OPTION",
    "OPTIONS",
    "FLAGS",
    "ARGS",
    "COMMAND",
    "CMD",
    "EXEC",
    "WRAPPER",
    "ASKPASS",
    "HOOK",
    "HOOKS",
    "PLUGIN",
    "PLUGINS",
    "STARTUP",
    "CONFIG",
    "CERT",
    "CERTS",
    "CERTIFICATE",
    "CERTIFICATES",
    "SSL",
    "TLS",
    "BUNDLE",
    "INIT",
    "MODULES",
];
const DENIED_WORDS: [&str; 3] = ["CA", "CAFILE", "SSLKEYLOGFILE"];
const DENIED_NAMES: [&str; 22] = [
    "ENV",
    "IFS",
    "TMP",
    "TEMP",
    "TMPDIR",
    "USER",
    "LOGNAME",
    "PWD",
    "OLDPWD",
    "PS4",
    "TERMINFO",
    "HOSTALIASES",
    "LOCALDOMAIN",
    "LESSOPEN",
    "LESSCLOSE",
    "GOENV",
    "GOTOOLCHAIN",
    "MAKEFILES",
    "INPUTRC",
    "PHPRC",
    "DOCKER_HOST",
    "DOCKER_CONTEXT",
];

/// Rejects a name that no job may set.
pub(super) fn check_name(name: &str) -> Result<(), Failure> {
    if !is_denied(&name.to_ascii_uppercase()) {
        return Ok(());
    }
    let message = format!(
        "transientEnv may not set {name}: it can decide which programs run, where they connect to or which certificates \
         they trust"
    );
    Err(Failure::invalid(Rule::TransientEnvShape, message))
}

/// Rejects names that an agent of this kind may not be given. Codex passes variables on to its tools only. Other programs get them
/// themselves, so they get nothing but credentials.
pub fn check_names<'a>(names: impl IntoIterator<Item = &'a str>, agent: &AgentConfig) -> Result<(), Failure> {
    for name in names {
        check_name(name)?;
        if matches!(agent, AgentConfig::Acp { .. }) && !is_credential(&name.to_ascii_uppercase()) {
            let message = format!(
                "transientEnv may not set {name} for this agent: its own program gets the variable, so the name must end in \
                 _TOKEN, _KEY, _SECRET, _PASSWORD or _PASSPHRASE"
            );
            return Err(Failure::invalid(Rule::TransientEnvShape, message));
        }
    }
    Ok(())
}

fn is_denied(upper: &str) -> bool {
    let begins = |prefixes: &[&str]| prefixes.iter().any(|prefix| upper.starts_with(prefix));
    let is_denied_word =
        |word: &str| DENIED_WORDS.contains(&word) || DENIED_WORD_ENDINGS.iter().any(|ending| word.ends_with(ending));
    begins(&OWN_PREFIXES)
        || DENIED_NAMES.contains(&upper)
        || upper.split('_').any(is_denied_word)
        || (begins(&DENIED_PREFIXES) && !is_credential(upper))
}

fn is_credential(upper: &str) -> bool {
    upper.rsplit_once('_').is_some_and(|(_, last)| CREDENTIAL_WORDS.contains(&last))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROGRAMS: &str = "PATH Path HOME LD_PRELOAD LD_AUDIT DYLD_INSERT_LIBRARIES GLIBC_TUNABLES GCONV_PATH LOCPATH NLSPATH \
        SHELL TMPDIR IFS PS4 ENV BASH_ENV BASHOPTS SHELLOPTS ZDOTDIR PROMPT_COMMAND EDITOR VISUAL PAGER BROWSER LESSOPEN \
        INPUTRC KUBECONFIG AWS_CONFIG_FILE XDG_CONFIG_HOME VIMINIT EXINIT GTK_MODULES";
    const INTERPRETERS: &str = "NODE_OPTIONS NODE_PATH PYTHONPATH PYTHONSTARTUP PYTHONHOME PYTHONBREAKPOINT PERL5LIB PERL5OPT \
        RUBYOPT RUBYLIB JAVA_TOOL_OPTIONS _JAVA_OPTIONS JDK_JAVA_OPTIONS CLASSPATH DOTNET_STARTUP_HOOKS RUSTC_WRAPPER \
        RUSTFLAGS CARGO_HOME GOFLAGS GOENV MAKEFLAGS NPM_CONFIG_REGISTRY npm_config_script_shell PIP_INDEX_URL UV_INDEX_URL \
        BUN_OPTIONS LUA_INIT PHPRC";
    const GIT_AND_SSH: &str = "GIT_CONFIG_COUNT GIT_CONFIG_KEY_0 GIT_CONFIG_VALUE_0 GIT_SSH_COMMAND GIT_SSH GIT_EXEC_PATH \
        GIT_ASKPASS GIT_EXTERNAL_DIFF GIT_PAGER SSH_ASKPASS SSH_AUTH_SOCK SUDO_ASKPASS";
    const TRAFFIC: &str = "HTTPS_PROXY https_proxy HTTP_PROXY ALL_PROXY NO_PROXY No_Proxy GOPROXY RES_OPTIONS HOSTALIASES \
        LOCALDOMAIN DOCKER_HOST DOCKER_CONTEXT";
    const CERTIFICATES: &str = "CODEX_CA_CERTIFICATE NODE_EXTRA_CA_CERTS REQUESTS_CA_BUNDLE CURL_CA_BUNDLE AWS_CA_BUNDLE \
        SSL_CERT_FILE SSL_CERT_DIR SSLKEYLOGFILE OPENSSL_CONF NODE_TLS_REJECT_UNAUTHORIZED GIT_SSL_NO_VERIFY GIT_SSL_KEY \
        PIP_CERT";
    const OWN: &str = "OSTLER_TOKEN AGENTRUN_RUN_ID KUBERNETES_SERVICE_HOST CODEX_HOME CODEX_API_KEY";
    const ALLOWED: &str = "GH_TOKEN GITHUB_TOKEN GIT_TOKEN NPM_TOKEN NODE_AUTH_TOKEN HWLAB_API_KEY UNIDESK_SSH_TOKEN \
        AWS_ACCESS_KEY_ID DATABASE_URL HWLAB_API_URL PGPASSWORD TASK_ID A _a1 LOCALE DEBUG";

    #[test]
    fn names_that_decide_about_code_traffic_or_certificates_are_denied() {
        for name in [PROGRAMS, INTERPRETERS, GIT_AND_SSH, TRAFFIC, CERTIFICATES, OWN].join(" ").split_whitespace() {
            let denied = check_name(name).expect_err(name);
            assert_eq!(denied.rule_name(), Some("transient-env-shape"), "{name}");
        }
        for name in ALLOWED.split_whitespace() {
            check_name(name).expect(name);
        }
    }

    #[test]
    fn programs_that_get_the_variables_themselves_get_only_credentials() {
        let acp = AgentConfig::Acp { command: vec!["agent".into()], keep: vec![], extensions: None };
        let denied =
            ["OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "OLLAMA_HOST", "GOOGLE_APPLICATION_CREDENTIALS", "A", "KEY"];
        for name in denied {
            let refused = check_names([name], &acp).unwrap_err();
            assert!(refused.message.contains(name), "{}", refused.message);
            check_names([name], &AgentConfig::Codex).unwrap();
        }
        check_names(["GH_TOKEN", "HWLAB_API_KEY", "DB_PASSWORD"], &acp).unwrap();
        for agent in [acp, AgentConfig::Codex, AgentConfig::Scripted] {
            check_names(["GH_TOKEN", "HTTPS_PROXY"], &agent).unwrap_err();
        }
    }
}
