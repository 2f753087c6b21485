//! Network policies select the pods that exist, and runners reach nothing but the server, DNS and public addresses.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::manifests::{Overlay, items, runner_labels, selects};

fn ports(rules: &Value) -> BTreeSet<i64> {
    items(rules).flat_map(|rule| items(&rule["ports"])).map(|port| port["port"].as_i64().unwrap()).collect()
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
        assert!(blocks.iter().any(|to| to["ipBlock"].to_string().contains("169.254.0.0/16")), "{blocks:?}");
        assert!(blocks.iter().all(|to| items(&to["ipBlock"]["except"]).count() > 1), "{blocks:?}");
    }
}
