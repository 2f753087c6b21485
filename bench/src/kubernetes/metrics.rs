//! What a server counts of its cluster, as its metrics page shows it.

use std::collections::BTreeMap;

use crate::http::{Connection, request};
use crate::outcome::Outcome;
use crate::server::Server;

/// Calls of the API server by verb.
pub(crate) async fn read_calls(server: &Server) -> Outcome<BTreeMap<String, u64>> {
    Ok(calls_by_verb(&page(server).await?))
}

/// How many objects of a kind the server knows: `active-job`, `finished-job` or `pod`.
pub(crate) async fn read_known(server: &Server, kind: &str) -> Outcome<usize> {
    known_objects(&page(server).await?, kind).ok_or_else(|| format!("no metric counts {kind}").into())
}

async fn page(server: &Server) -> Outcome<String> {
    let mut connection = Connection::open(server).await?;
    let page = connection.call(&request(server, "GET", "/metrics", "")).await?;
    Ok(String::from_utf8_lossy(page).into_owned())
}

fn calls_by_verb(page: &str) -> BTreeMap<String, u64> {
    let mut calls = BTreeMap::new();
    for line in page.lines() {
        let verb = line.strip_prefix("ostler_cluster_calls_total{verb=\"").and_then(|rest| rest.split_once('"'));
        let count = line.rsplit_once(' ').and_then(|(_, count)| count.parse::<u64>().ok());
        if let (Some((verb, _)), Some(count)) = (verb, count) {
            *calls.entry(verb.to_owned()).or_default() += count;
        }
    }
    calls
}

fn known_objects(page: &str, kind: &str) -> Option<usize> {
    let start = format!("ostler_cluster_objects{{kind=\"{kind}\"}} ");
    page.lines().find_map(|line| line.strip_prefix(start.as_str())?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_summed_by_verb_and_objects_are_found_by_kind() {
        let page = "# TYPE ostler_cluster_calls_total counter\n\
            ostler_cluster_calls_total{verb=\"create\",resource=\"jobs\"} 2\n\
            ostler_cluster_calls_total{verb=\"create\",resource=\"secrets\"} 3\n\
            ostler_cluster_calls_total{verb=\"watch\",resource=\"jobs\"} 1\n\
            ostler_cluster_objects{kind=\"pod\"} 4\n";
        assert_eq!(calls_by_verb(page), BTreeMap::from([("create".to_owned(), 5), ("watch".to_owned(), 1)]));
        assert_eq!((known_objects(page, "pod"), known_objects(page, "finished-job")), (Some(4), None));
    }
}
