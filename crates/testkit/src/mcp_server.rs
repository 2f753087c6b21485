//! An MCP server for tests: a small program that speaks the real protocol, and can be slow, huge, wrong or gone.

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

const SCRIPT: &str = include_str!("mcp_server.py");

/// The program that runs the script.
pub fn python() -> String {
    std::env::var("OSTLER_TEST_PYTHON").unwrap_or_else(|_| "python3".into())
}

/// Writes the script into a directory, and returns its path.
pub fn write_script(directory: &Path) -> PathBuf {
    let path = directory.join("mcp_server.py");
    std::fs::write(&path, SCRIPT).expect("the directory can be written");
    path
}

/// A server that listens on loopback until this is dropped.
pub struct HttpMcpServer {
    child: Child,
    pub url: String,
}

impl HttpMcpServer {
    /// `authorization`: the header that it requires.
    pub fn start(directory: &Path, authorization: Option<&str>) -> Self {
        let mut command = Command::new(python());
        command.arg(write_script(directory)).arg("http").args(authorization).stdout(Stdio::piped());
        let mut child = command.spawn().expect("python is installed");
        let mut port = String::new();
        let output = child.stdout.take().expect("its output is a pipe");
        BufReader::new(output).read_line(&mut port).expect("it prints its port");
        Self { child, url: format!("http://127.0.0.1:{}/mcp", port.trim()) }
    }
}

impl Drop for HttpMcpServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
