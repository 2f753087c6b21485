//! A coding agent that a shell acts: it speaks the Agent Client Protocol with the requests of Qwen Code, and has its command to manage
//! extensions. The tests with the real one are in the command line's crate.

use ostler_daemon::config::DaemonSection;
use serde_json::{Value, json};

use crate::harness::{Caller, Engine, Setup, TestServer, eventually};

pub(crate) const PROFILE: &str = "acted";

/// Each line is a request. What it is about is recognised by its method.
const SCRIPT: &str = r#"
ext="$HOME/.qwen/extensions"
if [ "$0" = extensions ]; then
    mkdir -p "$ext"
    case $1 in
    install)
        [ -d "$2" ] || { echo "Install source not found: $2" >&2; exit 1; }
        mkdir "$ext/demo" || exit 1
        echo 'Extension "demo" installed successfully and enabled.' ;;
    update) echo "Extension \"$2\" is already up to date." ;;
    *)
        [ -d "$ext/$2" ] || { printf 'qwen extensions %s\n\nOptions:\n  --scope  %0600d\n\nError: Extension with name %s does not exist.\n    at file:///qwen.js:1:2\n' "$1" 0 "$2" >&2; exit 1; }
        if [ "$1" = uninstall ]; then rm -r "$ext/$2"; else echo "$1 $3" > "$ext/$2/state"; fi
        echo "Extension \"$2\" successfully done." ;;
    esac
    exit
fi
reply() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"; }
refuse() { printf '{"jsonrpc":"2.0","id":%s,"error":{"code":%s,"message":"no"}}\n' "$id" "$1"; }
while read -r l; do
    id=${l#*\"id\":}; id=${id%%[,\}]*}
    case $l in
    *'"initialize"'*) reply '{"protocolVersion":1,"agentInfo":{"name":"acted"}}' ;;
    *session/new*) reply '{"sessionId":"s1","modes":{"currentModeId":"yolo","availableModes":[{"id":"plan"},{"id":"default"},{"id":"yolo"}]}}' ;;
    *session/set_mode*) echo "$l" >> modes; reply '{}' ;;
    *session/prompt*) reply '{"stopReason":"end_turn"}' ;;
    *session/supported_commands*) reply '{"sessionId":"s1","availableCommands":[{"name":"init","input":null}],"availableSkills":["review"]}' ;;
    *session/lsp*) reply '{"enabled":true,"configuredServers":1,"readyServers":1,"servers":[{"name":"rust","status":"READY"}]}' ;;
    *session/hooks*) reply '{"disabled":false,"hooks":[{"kind":"hook","eventName":"Stop"}]}' ;;
    *workspace/skills*) reply '{"skills":[{"kind":"skill","name":"review","description":"Reviews"}]}' ;;
    *workspace/preflight*) reply '{"cells":[{"kind":"auth","status":"error","locality":"acp"},{"kind":"mcp_discovery","status":"ok","locality":"acp"},{"kind":"skills","status":"ok","locality":"acp","detail":{"count":1}},{"kind":"tool_registry","status":"ok","locality":"acp"},{"kind":"egress","status":"not_started","locality":"acp"}]}' ;;
    *workspace/hooks*) reply '{"hooks":[{"kind":"hook","eventName":"Stop"}],"events":{"Stop":{"description":"At the end"}}}' ;;
    *workspace/extensions*)
        list=
        for one in "$ext"/*/; do
            [ -d "$one" ] && list='{"kind":"extension","name":"'$(basename "$one")'","version":"1.0.0","updateState":"unknown"}'
        done
        reply '{"extensions":['"$list"']}' ;;
    *agents/generate*)
        case $l in
        *please-fail*) refuse -32603 ;;
        *please-die*) exit 1 ;;
        *) reply '{"name":"tester","description":"Tests","systemPrompt":"You test."}' ;;
        esac ;;
    *) refuse -32601 ;;
    esac
done
"#;

/// Binds the server to a workspace, and chooses the profile of the agent for it.
pub(crate) fn choose(setup: &mut Setup) {
    setup.bind_workspace();
    setup.config.change(|daemon: &mut DaemonSection| daemon.profile = PROFILE.into());
}

/// A server with the agent, and with tokens of a client and of a provider.
pub(crate) async fn server(engine: Engine) -> TestServer {
    server_with(engine, |_| ()).await
}

/// As [`server`], with other settings.
pub(crate) async fn server_with(engine: Engine, change: impl FnOnce(&mut Setup)) -> TestServer {
    let server = TestServer::with(engine, |setup| {
        choose(setup);
        setup.token("client", "client", &["local"]);
        setup.token("provider", "provide", &["local"]);
        change(setup);
    })
    .await;
    install(&server).await;
    server
}

/// Stores the profile.
pub(crate) async fn install(operator: &Caller) {
    install_command(operator, &format!("[\"/bin/sh\", \"-c\", '''{SCRIPT}''', \"--acp\"]")).await;
}

/// Stores the profile with another command.
pub(crate) async fn install_command(operator: &Caller, command: &str) {
    // The model that answers questions beside sessions. No test asks it.
    let auth = json!({"selectedType": "openai", "baseUrl": "https://models.example/v1"});
    let settings = json!({"security": {"auth": auth}, "model": {"name": "small"}});
    let config = format!(
        "[ostler]\nagent = \"acp\"\nextensions = \"qwen\"\ncommand = {command}\n\
         [ostler.files]\n\".qwen/settings.json\" = '{settings}'\n"
    );
    let auth = json!({"OPENAI_API_KEY": "pl4nted-key-of-the-agent"}).to_string();
    let body = json!({"files": {"auth.json": auth, "config.toml": config}});
    let path = format!("/api/v1/provider-profiles/{PROFILE}/credential");
    operator.call("PUT", &path, &body).await.with_status(200);
}

/// Waits until a change of extensions has ended, and returns it.
pub(crate) async fn ended(caller: &Caller, operation_id: &str) -> Value {
    let path = format!("/workspace/extensions/operations/{operation_id}");
    eventually("the change ends", async || {
        let operation = caller.get(&path).await.with_status(200);
        let is_open = ["queued", "running"].contains(&operation["status"].as_str().unwrap());
        (!is_open).then_some(operation)
    })
    .await
}
