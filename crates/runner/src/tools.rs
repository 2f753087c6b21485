//! The tools that a backend gets from us: MCP servers that it connects to itself, and tools of its own that it must not use.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, openat, renameat, unlinkat},
    io::Errno,
};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value, json};

/// The settings of Qwen Code: a folder of the home, and a file in it. Other agents that have a switch for tools get their own function
/// here.
const QWEN_FOLDER: &str = ".qwen";
const QWEN_SETTINGS: &str = "settings.json";
/// The settings are written under this name first.
const NEW_SETTINGS: &str = ".settings.json.ostler";
const SETTINGS_BYTES_MAX: u64 = 1024 * 1024;

/// An MCP server that a backend may use.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OfferedMcpServer {
    pub name: String,
    #[serde(flatten)]
    pub transport: OfferedTransport,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OfferedTransport {
    Stdio { command: String, args: Vec<String>, env: Vec<NamedSecret> },
    Http { url: String, headers: Vec<NamedSecret> },
}

/// A variable or a header. The value is serialised in clear: the reader is the runner, or the backend that it is for.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedSecret {
    pub name: String,
    #[serde(serialize_with = "expose")]
    pub value: SecretString,
}

fn expose<S: Serializer>(value: &SecretString, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_str(value.expose_secret())
}

/// The servers as ACP describes them. Those that are reached over HTTP are left out unless the backend supports that.
pub(crate) fn acp_servers(servers: &[OfferedMcpServer], has_http: bool) -> Vec<Value> {
    let described = servers.iter().filter_map(|server| match &server.transport {
        OfferedTransport::Stdio { command, args, env } => {
            Some(json!({"name": server.name, "command": command, "args": args, "env": env}))
        }
        OfferedTransport::Http { url, headers } => {
            has_http.then(|| json!({"type": "http", "name": server.name, "url": url, "headers": headers}))
        }
    });
    described.collect()
}

/// Adds the tools that are switched off to the settings that an agent has in its home, if it is one that reads them there. The agent may
/// have put anything into its home, and is confined where this process is not: no link is followed. Fails if there is one in place of the
/// settings or their folder.
pub(crate) fn disable_in_home(home: &Path, disabled: &[String]) -> io::Result<()> {
    if disabled.is_empty() {
        return Ok(());
    }
    let home = openat(CWD, home, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let Some(folder) = open_existing(&home, QWEN_FOLDER, OFlags::DIRECTORY)? else { return Ok(()) };
    let Some(mut settings) = read_settings(&folder)? else { return Ok(()) };
    let tools = settings.entry("tools").or_insert_with(|| Map::new().into());
    let Some(tools) = tools.as_object_mut() else { return Ok(()) };
    let listed = tools.entry("disabled").or_insert_with(|| json!([]));
    let Some(listed) = listed.as_array_mut() else { return Ok(()) };
    for name in disabled {
        if !listed.iter().any(|listed| listed == name.as_str()) {
            listed.push(name.as_str().into());
        }
    }
    replace_settings(&folder, &Value::Object(settings).to_string())
}

/// Opens an entry of a directory that is not a link. `None` if there is none.
fn open_existing(directory: impl AsFd, name: &str, kind: OFlags) -> io::Result<Option<OwnedFd>> {
    // Otherwise, opening a named pipe would wait for its other end.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | kind;
    match openat(directory, name, flags, Mode::empty()) {
        Ok(opened) => Ok(Some(opened)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The settings in the folder. `None` if there are none, or if they cannot be understood: they are not ours to repair, and the requests
/// for permission of these tools are rejected in any case.
fn read_settings(folder: &OwnedFd) -> io::Result<Option<Map<String, Value>>> {
    let Some(file) = open_existing(folder, QWEN_SETTINGS, OFlags::empty())?.map(File::from) else { return Ok(None) };
    if !file.metadata()?.is_file() {
        return Ok(None);
    }
    let mut bytes = vec![];
    file.take(SETTINGS_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > SETTINGS_BYTES_MAX {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(settings)) => Ok(Some(settings)),
        _ => Ok(None),
    }
}

/// Replaces the settings as a whole.
fn replace_settings(folder: &OwnedFd, text: &str) -> io::Result<()> {
    // Left by a runner that was killed.
    match unlinkat(folder, NEW_SETTINGS, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let new = openat(folder, NEW_SETTINGS, flags, Mode::RUSR | Mode::WUSR)?;
    File::from(new).write_all(text.as_bytes())?;
    renameat(folder, NEW_SETTINGS, folder, QWEN_SETTINGS)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(transport: OfferedTransport) -> OfferedMcpServer {
        OfferedMcpServer { name: "notes".into(), transport }
    }

    fn secret(name: &str) -> NamedSecret {
        NamedSecret { name: name.into(), value: "pl4nted".to_owned().into() }
    }

    #[test]
    fn servers_are_described_as_acp_wants_them() {
        let stdio =
            OfferedTransport::Stdio { command: "/bin/x".into(), args: vec!["-v".into()], env: vec![secret("A")] };
        let http = OfferedTransport::Http { url: "https://x/mcp".into(), headers: vec![secret("Authorization")] };
        let servers = [server(stdio), server(http)];
        let described = acp_servers(&servers, true);
        let env = json!([{"name": "A", "value": "pl4nted"}]);
        assert_eq!(described[0], json!({"name": "notes", "command": "/bin/x", "args": ["-v"], "env": env}));
        assert_eq!((&described[1]["type"], &described[1]["url"]), (&json!("http"), &json!("https://x/mcp")));
        assert_eq!(acp_servers(&servers, false).len(), 1);
        assert!(!format!("{servers:?}").contains("pl4nted"));
        let sent = serde_json::to_string(&servers).unwrap();
        let received: Vec<OfferedMcpServer> = serde_json::from_str(&sent).unwrap();
        assert_eq!(acp_servers(&received, true), described);
    }

    #[test]
    fn tools_are_disabled_beside_those_that_the_settings_disable() {
        let home = tempfile::tempdir().unwrap();
        disable_in_home(home.path(), &["a".into()]).unwrap();
        std::fs::create_dir(home.path().join(".qwen")).unwrap();
        let path = home.path().join(QWEN_FOLDER).join(QWEN_SETTINGS);
        disable_in_home(home.path(), &["a".into()]).unwrap();
        assert!(!path.exists(), "there are no settings");
        std::fs::write(&path, r#"{"model": {"name": "m"}, "tools": {"disabled": ["a"]}}"#).unwrap();
        disable_in_home(home.path(), &["a".into(), "b".into()]).unwrap();
        let settings: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(settings, json!({"model": {"name": "m"}, "tools": {"disabled": ["a", "b"]}}));
        for odd in ["[]", "{\"tools\": 7}", "{\"tools\": {\"disabled\": 7}}", "nonsense"] {
            std::fs::write(&path, odd).unwrap();
            disable_in_home(home.path(), &["b".into()]).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), odd);
        }
    }

    #[test]
    fn no_link_in_the_home_is_followed_to_the_settings() {
        let (home, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let target = outside.path().join(QWEN_SETTINGS);
        std::fs::write(&target, "{}").unwrap();
        let folder = home.path().join(QWEN_FOLDER);
        std::os::unix::fs::symlink(outside.path(), &folder).unwrap();
        assert!(disable_in_home(home.path(), &["a".into()]).is_err(), "the folder is a link");
        std::fs::remove_file(&folder).unwrap();
        std::fs::create_dir(&folder).unwrap();
        std::os::unix::fs::symlink(&target, folder.join(QWEN_SETTINGS)).unwrap();
        assert!(disable_in_home(home.path(), &["a".into()]).is_err(), "the file is a link");
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "{}");
        std::fs::remove_file(folder.join(QWEN_SETTINGS)).unwrap();
        std::fs::write(folder.join(QWEN_SETTINGS), "{}").unwrap();
        std::os::unix::fs::symlink(&target, folder.join(NEW_SETTINGS)).unwrap();
        disable_in_home(home.path(), &["a".into()]).unwrap();
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "{}", "nor is one in place of the new file");
        let settings = std::fs::read_to_string(folder.join(QWEN_SETTINGS)).unwrap();
        assert_eq!(settings, r#"{"tools":{"disabled":["a"]}}"#);
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
    }

    #[test]
    fn settings_that_are_too_large_are_not_read() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join(QWEN_FOLDER)).unwrap();
        let text = format!("{{\"x\": \"{}\"}}", "x".repeat(SETTINGS_BYTES_MAX as usize));
        std::fs::write(home.path().join(QWEN_FOLDER).join(QWEN_SETTINGS), text).unwrap();
        let error = disable_in_home(home.path(), &["a".into()]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }
}
