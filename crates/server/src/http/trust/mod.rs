//! The trust dialect: agents and what people grant them. Flat bodies in snake_case, and failures that also say
//! `{"error": {"code": …}}`. It only translates.

pub mod agents;
pub mod receipts;
pub mod relations;
pub mod sockets;
pub mod webhooks;

/// Where this dialect is spoken.
const PATHS: [&str; 2] = ["/agents", "/h2a"];

pub fn speaks(path: &str) -> bool {
    PATHS.iter().any(|known| path.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dialect_is_spoken_under_its_own_paths_only() {
        for (path, ours) in [
            ("/agents", true),
            ("/agents/x", true),
            ("/h2a/relations", true),
            ("/agentsx", false),
            ("/api/v1/runs", false),
        ] {
            assert_eq!(speaks(path), ours, "{path}");
        }
    }
}
