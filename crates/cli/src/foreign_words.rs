//! Words of other tools, answered with the command of this one.

/// The command for a word that other tools use, with what it does.
pub(crate) fn command_for(word: &str) -> Option<&'static str> {
    let hint = match word {
        "logs" | "log" | "tail" | "cat" => {
            "`ostler output RUN` prints messages and tool output, `ostler trace -f RUN` follows every event"
        }
        "events" => "`ostler trace RUN` shows every event, `ostler trace -f RUN` follows them",
        "follow" | "watch" => "`ostler trace -f RUN` follows a run, `ostler ps -w` all sessions",
        "status" => "`ostler ps` lists what runs, `ostler result RUN` shows one run, `ostler doctor` checks the server",
        "list" | "ls" | "top" => "`ostler ps` lists what runs and is unread, `ostler runs list` every run",
        "get" | "describe" | "show" | "inspect" => {
            "`ostler result RUN` and `ostler sessions show SESSION` show one, `ostler runs list` lists runs"
        }
        "stop" | "kill" | "abort" | "rm" | "delete" => "`ostler cancel RUN` stops a run",
        "start" | "exec" | "create" | "submit" | "ask" => "`ostler run \"…\"` starts a run",
        "rerun" | "restart" | "again" => "`ostler retry RUN` submits the input of a run again",
        "allow" | "accept" | "answer" => "`ostler approve` answers permission requests",
        "reject" | "refuse" => "`ostler deny RUN` refuses a permission request",
        "login" | "auth" | "logout" => {
            "there is no login: set OSTLER_TOKEN, or `ostler contexts add NAME --server URL --token-file FILE`; \
             `ostler whoami` shows whose token is used"
        }
        "tenants" | "tenant" => "`ostler whoami` lists the tenants that you can name with `--tenant`",
        "id" | "me" => "`ostler whoami` shows whose token is used",
        "server" | "up" => "`ostler serve` runs a server",
        "check" | "health" | "ping" => "`ostler doctor` checks the installation",
        "history" => "`ostler runs list` lists every run, `ostler trace RUN` shows what happened in one",
        "resume" | "continue" | "chat" => {
            "`ostler run --session SESSION \"…\"` continues a session, `ostler attach` opens one of a workspace live"
        }
        "open" | "connect" => {
            "`ostler attach` opens a session of a workspace live, `ostler trace -f RUN` follows a run"
        }
        "edit" | "patch" => {
            "`ostler apply -f FILE` creates and changes profiles and agents, `ostler agents update` and `ostler profiles config` one of them"
        }
        "replace" => "`ostler apply -f FILE` creates and changes profiles and agents",
        "can" | "may" => {
            "`ostler can-i ACTION` shows whether the token may do something, `ostler can-i` lists the actions"
        }
        "schema" | "api-resources" => "`ostler explain` lists the formats whose fields it explains",
        "upgrade" | "update" | "self-update" => {
            "replace the program with the new release and restart the server, which updates its store; \
             `ostler migrate` updates the store of several servers before they start"
        }
        "version" => "`ostler --version` prints the version, `ostler doctor` also that of the server",
        "init" => "`ostler agents init NAME` writes a first manifest; `ostler serve` needs no preparation",
        "guide" | "docs" | "manual" => "the server shows its guides under /guide and its API under /docs",
        "todo" | "pending" | "requests" => "`ostler inbox` lists everything that waits for you",
        _ => return None,
    };
    Some(hint)
}

/// The command for two words that other tools use together, such as `auth can-i`.
pub(crate) fn command_for_two(first: &str, second: &str) -> Option<&'static str> {
    let hint = match (first, second) {
        ("auth", "can-i") => {
            "`ostler can-i ACTION` shows whether the token may do something, `ostler can-i` lists the actions"
        }
        ("auth", "status" | "whoami") => "`ostler whoami` shows whose token is used, and what it may do",
        _ => return None,
    };
    Some(hint)
}

/// One word for all that mean the same below every noun.
fn meaning_of(word: &str) -> &str {
    match word {
        "stop" | "kill" | "abort" => "cancel",
        "remove" | "rm" | "del" => "delete",
        "add" | "new" | "make" => "create",
        "get" | "describe" | "inspect" | "status" | "info" => "show",
        "ls" => "list",
        "events" | "follow" | "watch" | "tail" => "trace",
        "logs" | "log" | "cat" => "output",
        "edit" | "patch" | "set" => "update",
        other => other,
    }
}

/// The command for a word that other tools use below a noun, such as `cancel` in `ostler runs cancel`.
pub(crate) fn command_below(noun: &str, word: &str) -> Option<&'static str> {
    let hint = match (noun, meaning_of(word)) {
        ("runs", "cancel" | "delete") => "`ostler cancel RUN` stops a run",
        ("sessions", "cancel") => "`ostler cancel SESSION` stops what runs in a session",
        ("jobs", "cancel" | "delete") => "`ostler cancel RUN` stops a run and its job",
        ("runs", "show" | "result") => "`ostler result RUN` shows one run",
        ("runs", "trace") => "`ostler trace RUN` shows every event of a run, `ostler trace -f RUN` follows them",
        ("sessions", "trace") => {
            "`ostler trace SESSION` shows the events of its run, `ostler trace -f SESSION` follows them"
        }
        ("runs" | "sessions", "output") => "`ostler output RUN` prints messages and tool output",
        ("runs", "create" | "run" | "start" | "submit") => "`ostler run \"…\"` starts a run",
        ("runs", "retry" | "rerun" | "restart") => "`ostler retry RUN` submits the input of a run again",
        ("runs", "wait") => "`ostler wait RUN` waits for the end of a run",
        ("runs", "approve" | "deny") => "`ostler approve RUN` and `ostler deny RUN` answer permission requests",
        ("runs", "diff") => "`ostler diff RUN` shows what a run changed",
        ("sessions", "read") => {
            "`ostler read SESSION` marks a session as read, `ostler output SESSION` prints its messages"
        }
        ("sessions", "run" | "start" | "resume" | "continue") => {
            "`ostler run --session SESSION \"…\"` continues a session"
        }
        ("sessions", "attach" | "open") => "`ostler attach` opens a session of a workspace live",
        ("sessions", "delete") => {
            "`ostler sessions close SESSION` ends a session, `ostler sessions evict SESSION` removes what it stores"
        }
        ("agents", "grant") => "`ostler consent grant AGENT` grants scopes to an agent",
        ("agents", "revoke") => "`ostler consent revoke` takes grants back",
        ("agents", "delete") => "`ostler agents retire AGENT` ends an agent",
        ("agents", "run" | "start") => "`ostler run --agent AGENT \"…\"` starts a run of an agent",
        ("tokens" | "token", "delete") => "`ostler tokens revoke TOKEN` ends a token",
        ("tokens" | "token", "show") => "`ostler tokens list` lists the tokens, `ostler whoami` shows whose is used",
        ("retention", "list") => "`ostler retention show` shows each limit, `ostler retention holds` lists the holds",
        ("retention", "sweep" | "delete" | "purge") => "`ostler retention run` removes what is older than its limit",
        ("users", "create") => "`ostler users add NAME` adds a user",
        ("users", "delete") => "`ostler users remove NAME` removes a user",
        ("users" | "contexts" | "context", "show") => "the verb `list` shows all of them",
        ("contexts" | "context", "create" | "update") => {
            "`ostler contexts add NAME --server URL` adds or replaces a context"
        }
        ("contexts" | "context", "delete") => "`ostler contexts remove NAME` removes a context",
        ("profiles" | "agents", "apply") => "`ostler apply -f FILE` creates and changes profiles and agents",
        ("profiles", "create" | "update") => "`ostler profiles set PROFILE` stores a credential",
        ("profiles", "delete") => "`ostler profiles delete PROFILE` removes a profile",
        ("profiles", "test" | "try" | "check") => "`ostler profiles validate PROFILE` tries a profile",
        ("webhooks", "create" | "update") => "`ostler webhooks set AGENT URL` sets the webhook of an agent",
        ("webhooks", "delete") => "`ostler webhooks remove AGENT` removes the webhook of an agent",
        ("calendar", "create") => "`ostler calendar add` adds an event",
        ("calendar" | "automations", "delete") => "the verb is `delete`",
        ("automations", "cancel" | "disable") => "`ostler automations pause AUTOMATION` stops its schedule",
        ("automations", "start" | "enable") => {
            "`ostler automations resume AUTOMATION` continues its schedule, `ostler automations run AUTOMATION` starts it now"
        }
        ("consent", "show") => "`ostler consent list` lists what was granted",
        ("consent", "delete" | "deny") => "`ostler consent revoke` takes grants back",
        ("backends", "show") => "`ostler backends list` lists the profiles that the server can run",
        _ => return None,
    };
    Some(hint)
}

/// The hint about a word too many for a command that other tools give more of them.
pub(crate) fn for_extra_word(command: &str) -> Option<&'static str> {
    (command == "ostler can-i").then_some("an action is one word, such as `submit`; `ostler can-i` lists the actions")
}

/// The command that lists what an argument such as `<RUN>` can name.
pub(crate) fn list_of(argument: &str) -> Option<&'static str> {
    let hint = match argument.trim_matches(['<', '>', '[', ']', '.']) {
        "JOB" => "`ostler jobs list RUN` lists the jobs of a run",
        "RUN" | "RUN|SESSION" | "SESSION|RUN" => "`ostler ps` lists sessions, `ostler runs list` every run",
        "SESSION" => "`ostler sessions list` lists the sessions",
        "PROFILE" => "`ostler profiles list` lists the profiles",
        "AGENT" => "`ostler agents list` lists the agents",
        "TOKEN" => "`ostler tokens list` lists the tokens",
        _ => return None,
    };
    Some(hint)
}

/// The state of a run for a word that other tools use.
pub(crate) fn state_for(word: &str) -> Option<&'static str> {
    let hint = match word {
        "idle" | "ended" | "finished" | "terminal" => {
            "a run that has ended a turn is `completed`, `failed`, `blocked` or `cancelled`; several fit between commas"
        }
        "done" | "success" | "succeeded" | "ok" => "the state is `completed`",
        "error" | "errored" | "failure" => "the state is `failed`",
        "canceled" | "aborted" | "stopped" | "killed" => "the state is `cancelled`",
        "denied" | "refused" => "the state is `blocked`",
        "queued" | "open" | "new" | "created" | "asking" => "the state is `waiting`",
        "active" | "working" | "in-progress" | "started" => "the state is `running`",
        _ => return None,
    };
    Some(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_other_tools_are_answered_with_a_command() {
        for (word, command) in [
            ("logs", "ostler output"),
            ("cat", "ostler output"),
            ("abort", "ostler cancel"),
            ("events", "ostler trace"),
            ("watch", "ostler trace -f"),
            ("status", "ostler ps"),
            ("list", "ostler runs list"),
            ("get", "ostler result"),
            ("describe", "ostler result"),
            ("stop", "ostler cancel"),
            ("login", "ostler contexts add"),
            ("tenants", "ostler whoami"),
            ("edit", "ostler apply -f"),
            ("can", "ostler can-i"),
            ("history", "ostler runs list"),
            ("resume", "ostler run --session"),
            ("upgrade", "ostler migrate"),
            ("version", "ostler --version"),
            ("guide", "/guide"),
        ] {
            assert!(command_for(word).is_some_and(|hint| hint.contains(command)), "{word}");
        }
        assert_eq!(command_for("frobnicate"), None);
        assert!(command_for_two("auth", "can-i").is_some_and(|hint| hint.starts_with("`ostler can-i ACTION`")));
        assert!(command_for_two("auth", "status").is_some_and(|hint| hint.starts_with("`ostler whoami`")));
        assert_eq!(command_for_two("auth", "login"), None, "the first word is enough");
        for (words, command) in [
            ("runs cancel", "`ostler cancel RUN`"),
            ("runs show", "`ostler result RUN`"),
            ("runs trace", "`ostler trace RUN`"),
            ("sessions read", "`ostler read SESSION`"),
            ("agents grant", "`ostler consent grant AGENT`"),
            ("tokens delete", "`ostler tokens revoke TOKEN`"),
            ("retention list", "`ostler retention show`"),
        ] {
            let (noun, word) = words.split_once(' ').unwrap();
            assert!(command_below(noun, word).is_some_and(|hint| hint.contains(command)), "{words}");
        }
        assert_eq!(command_below("runs", "frobnicate"), None);
        assert!(state_for("idle").is_some_and(|hint| hint.contains("`completed`")));
        assert!(state_for("canceled").is_some_and(|hint| hint.contains("`cancelled`")));
        assert_eq!(state_for("frobnicated"), None);
    }
}
