//! Network policies select the pods that exist, and runners reach nothing but the server, DNS and public addresses.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{
    manifests::{Overlay, items, root, runner_labels, selects, strings},
    settings::listen_port,
};

/// Ranges that are not public: of private networks, of carriers and clusters behind them, of the machine itself, and link-local ones,
/// where clouds have the metadata service of a machine.
const PRIVATE_V4: [&str; 6] =
    ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "100.64.0.0/10", "127.0.0.0/8"];
const PRIVATE_V6: [&str; 2] = ["fc00::/7", "fe80::/10"];

fn ports(rules: &Value) -> BTreeSet<i64> {
    items(rules).flat_map(|rule| items(&rule["ports"])).map(|port| port["port"].as_i64().unwrap()).collect()
}

/// Whether policies for pods with the labels `own` allow connections from (`ingress`) or to (`egress`) pods of the same
/// namespace with the labels `peer`.
fn allows(policies: &[&Value], direction: &str, own: &Value, peer: &Value, port: i64) -> bool {
    let end = if direction == "ingress" { "from" } else { "to" };
    let is_peer = |one: &Value| {
        let is_here = one["podSelector"].is_object() && one["namespaceSelector"].is_null();
        is_here && selects(&one["podSelector"], peer)
    };
    let of_own = policies.iter().filter(|policy| selects(&policy["spec"]["podSelector"], own));
    let mut rules = of_own.flat_map(|policy| items(&policy["spec"][direction]));
    rules.any(|rule| {
        let has_port = rule["ports"].is_null() || items(&rule["ports"]).any(|one| one["port"] == port);
        has_port && (rule[end].is_null() || items(&rule[end]).any(is_peer))
    })
}

/// Whether the policies of an overlay let a pod connect to another one. Both ends must allow it, because all traffic that no
/// policy allows is denied.
pub(crate) fn connects(overlay: &Overlay, from: &Value, to: &Value, port: i64) -> bool {
    let policies: Vec<&Value> = overlay.of("NetworkPolicy").collect();
    allows(&policies, "egress", from, to, port) && allows(&policies, "ingress", to, from, port)
}

/// The labels of the pod that is this component of an overlay. `None` if it has no such component.
pub(crate) fn labels_of<'a>(overlay: &'a Overlay, component: &str) -> Option<&'a Value> {
    let pods = overlay.pods();
    pods.iter().find(|pod| pod.labels["app.kubernetes.io/component"] == component).map(|pod| pod.labels)
}

#[test]
fn servers_and_runners_connect_to_servers_at_the_port_they_listen_on() {
    for overlay in Overlay::all() {
        let Some(port) = listen_port(&overlay) else { continue };
        let (name, runner, server) = (overlay.name, runner_labels(), labels_of(&overlay, "server").unwrap());
        assert!(connects(&overlay, server, server, port), "{name}: a server to another one");
        assert!(connects(&overlay, &runner, server, port), "{name}: a runner to a server");
        assert!(!connects(&overlay, server, server, port + 1), "{name}: at another port");
        assert!(!connects(&overlay, server, &runner, port), "{name}: a server to a runner");
        assert!(!connects(&overlay, &runner, &runner, port), "{name}: a runner to another one");
        if let Some(postgres) = labels_of(&overlay, "postgres") {
            assert!(connects(&overlay, server, postgres, 5432), "{name}: a server to Postgres");
            assert!(!connects(&overlay, &runner, postgres, 5432), "{name}: a runner to Postgres");
        }
    }
}

#[test]
fn policies_admit_to_servers_only_at_the_port_they_listen_on() {
    let clients = Overlay::of_file("clients.yaml");
    for overlay in Overlay::all() {
        let Some(port) = listen_port(&overlay) else { continue };
        let server = labels_of(&overlay, "server").unwrap();
        for policy in overlay.of("NetworkPolicy").chain(clients.of("NetworkPolicy")) {
            let (spec, name) = (&policy["spec"], &policy["metadata"]["name"]);
            if selects(&spec["podSelector"], server) && items(&spec["ingress"]).count() > 0 {
                assert_eq!(ports(&spec["ingress"]), BTreeSet::from([port]), "{}: {name}", overlay.name);
                let is_open = |rule: &Value| rule["from"].is_null() || rule["ports"].is_null();
                assert!(!items(&spec["ingress"]).any(is_open), "{}: {name}", overlay.name);
            }
        }
        let pods = overlay.pods();
        let containers = pods.iter().filter(|pod| pod.labels == server).flat_map(|pod| pod.containers());
        let listening: Vec<_> =
            containers.flat_map(|container| items(&container["ports"])).map(|one| &one["containerPort"]).collect();
        assert_eq!(listening, [&json!(port)], "{}", overlay.name);
    }
}

#[test]
fn the_policy_for_clients_admits_the_namespaces_that_the_guide_labels() {
    let file = Overlay::of_file("clients.yaml");
    let [policy] = &file.manifests[..] else { panic!("one policy") };
    assert_eq!(policy["metadata"]["namespace"], Value::Null, "every overlay can use it");
    assert_eq!(policy["spec"]["policyTypes"], json!(["Ingress"]));
    let from: Vec<_> = items(&policy["spec"]["ingress"]).map(|rule| &rule["from"]).collect();
    assert_eq!(from, [&json!([{"namespaceSelector": {"matchLabels": {"ostler.dev/client": "true"}}}])]);
    for overlay in Overlay::all().iter().filter(|overlay| overlay.name != "migration") {
        let (pods, selector) = (overlay.pods(), &policy["spec"]["podSelector"]);
        let selected: Vec<_> = pods.iter().map(|pod| pod.labels).filter(|labels| selects(selector, labels)).collect();
        assert_eq!(selected, [labels_of(overlay, "server").unwrap()], "{}", overlay.name);
        assert!(!selects(selector, &runner_labels()), "{}", overlay.name);
        let is_used = overlay.find("NetworkPolicy", policy["metadata"]["name"].as_str().unwrap()).is_some();
        assert!(!is_used, "{}: applying the file would replace a policy of the overlay", overlay.name);
    }
    let guide = std::fs::read_to_string(root().join("docs/kubernetes-clients.md")).unwrap();
    assert!(guide.contains("kubectl label namespace team-a ostler.dev/client=true"));
}

#[test]
fn every_policy_selects_pods_that_exist() {
    let migration = Overlay::read("migration");
    for overlay in Overlay::all().iter().filter(|overlay| overlay.name != "migration") {
        let mut pods: Vec<Value> = overlay.pods().iter().map(|pod| pod.labels.clone()).collect();
        pods.extend(migration.pods().iter().map(|pod| pod.labels.clone()));
        pods.push(runner_labels());
        for policy in overlay.of("NetworkPolicy") {
            let place = format!("{}: {}", overlay.name, policy["metadata"]["name"]);
            let exists = |selector: &Value| pods.iter().any(|labels| selects(selector, labels));
            assert!(exists(&policy["spec"]["podSelector"]), "{place}");
            let ends = [("ingress", "from"), ("egress", "to")];
            let peers =
                ends.iter().flat_map(|(rules, end)| items(&policy["spec"][*rules]).map(move |rule| &rule[*end]));
            for peer in peers.flat_map(items).filter(|peer| peer["podSelector"].is_object()) {
                assert!(exists(&peer["podSelector"]), "{place}: {peer}");
            }
        }
    }
}

#[test]
fn whatever_is_not_allowed_is_denied() {
    for overlay in Overlay::all().iter().filter(|overlay| overlay.name != "migration") {
        let deny = overlay.find("NetworkPolicy", "ostler-deny").unwrap();
        assert_eq!(deny["spec"], json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}), "{}", overlay.name);
    }
}

#[test]
fn a_runner_reaches_the_server_and_public_addresses_only() {
    for overlay in Overlay::all().iter().filter(|overlay| overlay.name != "migration") {
        let policies = overlay.of("NetworkPolicy");
        let of_runners: Vec<_> =
            policies.filter(|policy| selects(&policy["spec"]["podSelector"], &runner_labels())).collect();
        let reached: BTreeSet<i64> = of_runners.iter().flat_map(|policy| ports(&policy["spec"]["egress"])).collect();
        assert_eq!(reached, BTreeSet::from([53, 443, 4747]), "{}", overlay.name);
        assert!(of_runners.iter().all(|policy| ports(&policy["spec"]["ingress"]).is_empty()), "{}", overlay.name);
        let rules = of_runners.iter().flat_map(|policy| items(&policy["spec"]["egress"]));
        let blocks: Vec<_> = rules.flat_map(|rule| items(&rule["to"])).filter(|to| to["ipBlock"].is_object()).collect();
        let [v4, v6] = blocks[..] else { panic!("{}: one block for each version: {blocks:?}", overlay.name) };
        assert_eq!((&v4["ipBlock"]["cidr"], &v6["ipBlock"]["cidr"]), (&json!("0.0.0.0/0"), &json!("::/0")));
        for (block, private) in [(v4, &PRIVATE_V4[..]), (v6, &PRIVATE_V6[..])] {
            let except: BTreeSet<String> = strings(&block["ipBlock"]["except"]).into_iter().collect();
            for range in private {
                assert!(except.contains(*range), "{}: runners reach {range}", overlay.name);
            }
            assert_eq!(except.len(), private.len(), "{}: {except:?}", overlay.name);
        }
    }
}
