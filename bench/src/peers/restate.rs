//! Restate: a service with a handler that returns at once, called through the ingress. Restate has no stream of events for
//! a call: the answer is the result, so it sends less than the others.

use super::peer::{Call, Peer, Plan, Work, free_addresses, get, post};

pub(crate) const PEER: Peer = Peer {
    name: "Restate",
    durability: "the call and its result, synced",
    evidence: "`--dump-config`: `rocksdb-disable-wal-fsync = false`; strace: 861 syncs in 200 calls, none when idle",
    plan: |installed, directory| {
        let [ingress, admin, node, handler] = free_addresses()?;
        let mut service = installed.command("node", directory)?;
        service.arg(installed.file("handler")?).arg(handler.port().to_string()).env("RESTATE_LOGGING", "WARN");
        service.env("OSTLER_PEER_PACKAGES", installed.file("packages")?);
        let mut server = installed.command("server", directory)?;
        server.args(["--no-logo", "--listen-mode", "tcp", "--bind-address"]).arg(node.to_string());
        server.args(["--node-name", "bench", "--base-dir"]).arg(directory.join("restate"));
        server.env("RESTATE_INGRESS__BIND_ADDRESS", ingress.to_string());
        server.env("RESTATE_ADMIN__BIND_ADDRESS", admin.to_string());
        server.env("RESTATE_DISABLE_TELEMETRY", "true").env("RESTATE_LOG_FILTER", "warn");
        let ready = Call { address: ingress, request: get(ingress, "/restate/health"), answer: b"200" };
        let body = format!(r#"{{"uri":"http://{handler}"}}"#);
        let register = Call { address: admin, request: post(admin, "/deployments", &body), answer: b"echo" };
        Ok(Plan { commands: vec![service, server], address: ingress, ready, prepare: vec![register] })
    },
    work: Work::Runs {
        request: |address, client, number| post(address, "/echo/run", &format!(r#""hi {client} {number}""#)),
        end: br#""hello""#,
    },
};
