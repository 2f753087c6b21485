//! Names of MCP servers and of tools.

/// Most bytes of a server's name.
pub const SERVER_NAME_BYTES_MAX: usize = 256;
/// Most bytes of a tool's name, as agents call it.
pub const TOOL_NAME_BYTES_MAX: usize = 256;

/// How the names of all tools of MCP servers begin, as agents call them.
pub const TOOL_PREFIX: &str = "mcp__";

/// Whether a server can have this name. It becomes part of the names of its tools, so that it must be a plain word.
pub fn is_server_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    (1..=SERVER_NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_plain)
}

/// Whether a tool can have this name.
pub fn is_tool_name(name: &str) -> bool {
    (1..=TOOL_NAME_BYTES_MAX).contains(&name.len()) && !name.trim().is_empty() && !name.chars().any(char::is_control)
}

/// The name under which agents call a tool of a server. Published agents use the same form.
pub fn qualified(server: &str, tool: &str) -> String {
    format!("{TOOL_PREFIX}{server}__{tool}")
}

/// A server's own name of the tool that agents call by `name`. `None` if that is not a name of the server's tools.
pub fn own_name<'a>(name: &'a str, server: &str) -> Option<&'a str> {
    name.strip_prefix(TOOL_PREFIX)?.strip_prefix(server)?.strip_prefix("__")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_taken_apart_as_it_was_made() {
        assert_eq!(own_name(&qualified("git_hub", "log__all"), "git_hub"), Some("log__all"));
        for other in ["git", "hub", "git_hub__log", "GIT_HUB"] {
            assert_eq!(own_name(&qualified("git_hub", "all"), other), None, "{other}");
        }
        assert_eq!(own_name("time_now", "time"), None);
    }

    #[test]
    fn server_names_are_plain_words() {
        for good in ["a", "git-hub_2", &"x".repeat(SERVER_NAME_BYTES_MAX)] {
            assert!(is_server_name(good), "{good}");
        }
        for bad in ["", "a b", "a/b", "a.b", "ü", &"x".repeat(SERVER_NAME_BYTES_MAX + 1)] {
            assert!(!is_server_name(bad), "{bad}");
        }
    }

    #[test]
    fn tool_names_are_short_and_printable() {
        for good in ["run_shell_command", "mcp__git__log", "a b", &"x".repeat(TOOL_NAME_BYTES_MAX)] {
            assert!(is_tool_name(good), "{good}");
        }
        for bad in ["", "  ", "a\nb", &"x".repeat(TOOL_NAME_BYTES_MAX + 1)] {
            assert!(!is_tool_name(bad), "{bad}");
        }
    }
}
