//! Programs that we did not write, unmodified, against a real server.

mod agui;
mod approvals;
mod aun_core;
mod browser;
mod bucket;
mod codex;
mod daemon_page;
mod example_runner;
mod khal;
mod mcp_sdk;
mod mcp_servers;
mod model_server;
mod openssl;
mod proxies;
mod qwen;
mod qwen_agent;
mod qwen_sdk;
mod toolkit;
