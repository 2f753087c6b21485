//! The tables of a comparison, for the terminal and for the page.

use std::fmt::Write;

use super::results::{Compared, Figure, Metric, Quartiles, Results};
use crate::targets::Target;

pub(crate) const SQLITE: &str = "SQLite";
pub(crate) const POSTGRES: &str = "Postgres";

const OUR_DURABILITY: &str = "the message, each event and the result, synced before the client has them \
                              (SQLite: WAL with `synchronous = FULL`; Postgres: `fsync` and `synchronous_commit` on)";
const OUR_EVIDENCE: &str = "tests that cut the power (`cargo xtask torture`)";

const CELL_CHARS_MAX: usize = 48;

/// A peer, the figure that is compared, and by which factor Ostler must be ahead on each engine.
type PeerTarget = (&'static str, Metric, [(&'static str, f64); 2]);

const TARGETS: [PeerTarget; 4] = [
    ("stateless echo", Metric::RunsPerS, [(SQLITE, 1.0), (POSTGRES, 0.5)]),
    ("agentscope-runtime", Metric::RunsPerS, [(SQLITE, 5.0), (POSTGRES, 2.5)]),
    ("Restate", Metric::RunsPerS, [(SQLITE, 3.0), (POSTGRES, 1.5)]),
    ("nats-server JetStream", Metric::MessagesPerS, [(SQLITE, 3.0), (POSTGRES, 3.0)]),
];

pub(crate) struct Table {
    pub title: &'static str,
    header: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    fn new<const N: usize>(title: &'static str, header: [&'static str; N]) -> Self {
        Self { title, header: header.to_vec(), rows: vec![] }
    }

    /// Whether a cell is too long for a column.
    fn is_prose(&self) -> bool {
        self.rows.iter().flatten().any(|cell| cell.chars().count() > CELL_CHARS_MAX)
    }

    /// Columns of equal width, two spaces apart. A table with sentences has a line for each row instead.
    fn text(&self) -> String {
        let length = |text: &str| text.chars().count();
        let widths: Vec<usize> = (0..self.header.len())
            .map(|column| {
                let cells = self.rows.iter().filter_map(|row| row.get(column)).map(|cell| length(cell));
                cells.chain([length(self.header[column])]).max().unwrap_or(0)
            })
            .collect();
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            let mut line = String::new();
            for (cell, width) in cells.zip(&widths) {
                let _ = write!(line, "{cell:<width$}  ");
            }
            line.trim_end().to_owned() + "\n"
        };
        let mut out = format!("{}\n\n", self.title);
        if self.is_prose() {
            for row in &self.rows {
                let cells: Vec<&str> = row.iter().map(String::as_str).collect();
                out += &format!("  {}\n", cells.join(": "));
            }
            return out + "\n";
        }
        out += &line(&mut self.header.iter().copied());
        for row in &self.rows {
            out += &line(&mut row.iter().map(String::as_str));
        }
        out + "\n"
    }

    pub(crate) fn markdown(&self) -> String {
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            let cells: Vec<String> = cells.map(|cell| cell.replace('|', "\\|")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let mut out = line(&mut self.header.iter().copied());
        out += &format!("|{}\n", "---|".repeat(self.header.len()));
        for row in &self.rows {
            out += &line(&mut row.iter().map(String::as_str));
        }
        out
    }
}

/// All tables that have rows.
pub(crate) fn tables(results: &Results) -> Vec<Table> {
    let all = [
        runs(&results.compared),
        messages(&results.compared),
        starts(&results.compared),
        targets(&results.compared),
        durability(results),
        syncs(&results.compared),
        absent(results),
    ];
    all.into_iter().filter(|table| !table.rows.is_empty()).collect()
}

/// Everything, for the terminal.
pub(crate) fn text(results: &Results) -> String {
    let tables: Vec<String> = tables(results).iter().map(Table::text).collect();
    format!("\n{}{}\n", tables.concat(), conditions(results))
}

/// What the figures depend on.
pub(crate) fn conditions(results: &Results) -> String {
    let warning = "**The machine was busy with other programs. These figures show that the comparison works; do not quote \
                   them.** ";
    format!(
        "{}Measured with {}; {}; load of {:.1} before the first round; rounds of {} s; the load generator used at most {:.0} % of a core.",
        if results.is_disturbed() { warning } else { "" },
        results.ostler,
        results.machine,
        results.load_before,
        results.round_s,
        results.generator_share_max * 100.0
    )
}

fn runs(compared: &[Compared]) -> Table {
    let header = [
        "peer",
        "Ostler on",
        "runs/s",
        "peer's",
        "factor (quartiles)",
        "CPU ms per run",
        "peer's",
        "alone, p50 ms",
        "peer's",
        "factor (quartiles)",
    ];
    let mut table = Table::new("Runs: 16 clients, and one client alone", header);
    for peer in compared {
        for engine in [SQLITE, POSTGRES] {
            let Some(runs) = peer.figure(Metric::RunsPerS, engine) else { continue };
            let (cpu, alone) = (peer.figure(Metric::CpuMsPerRun, engine), peer.figure(Metric::AloneP50Ms, engine));
            let mut row = vec![peer.name.clone(), engine.to_owned()];
            row.extend(values(Some(runs), true));
            row.extend(values(cpu, false));
            row.extend(values(alone, true));
            table.rows.push(row);
        }
    }
    table
}

fn messages(compared: &[Compared]) -> Table {
    let header = ["peer", "Ostler on", "messages/s", "peer's", "factor (quartiles)", "CPU µs per message", "peer's"];
    let mut table = Table::new("Durable messages: 64 clients, batches of 16 messages of 1,000 bytes", header);
    for peer in compared {
        for engine in [SQLITE, POSTGRES] {
            let Some(rate) = peer.figure(Metric::MessagesPerS, engine) else { continue };
            let mut row = vec![peer.name.clone(), engine.to_owned()];
            row.extend(values(Some(rate), true));
            row.extend(values(peer.figure(Metric::CpuUsPerMessage, engine), false));
            table.rows.push(row);
        }
    }
    table
}

fn starts(compared: &[Compared]) -> Table {
    let header = [
        "peer",
        "ready after ms",
        "peer's",
        "factor (quartiles)",
        "resident MiB",
        "peer's",
        "factor (quartiles)",
        "of it anonymous",
        "peer's",
    ];
    let mut table = Table::new("Start on an empty store, and memory before the first run (Ostler on SQLite)", header);
    for peer in compared {
        let Some(ready) = peer.figure(Metric::ReadyMs, SQLITE) else { continue };
        let mut row = vec![peer.name.clone()];
        row.extend(values(Some(ready), true));
        row.extend(values(peer.figure(Metric::RssMib, SQLITE), true));
        row.extend(values(peer.figure(Metric::AnonymousMib, SQLITE), false));
        table.rows.push(row);
    }
    table
}

/// Factors with targets, which the medians meet or miss. Those with the target between their quartiles are marked.
fn targets(compared: &[Compared]) -> Table {
    let header = ["peer", "Ostler on", "figure", "factor (quartiles)", "target", "verdict"];
    let mut table = Table::new("Targets", header);
    for (name, metric, engines) in TARGETS {
        let Some(peer) = compared.iter().find(|peer| peer.name == name) else { continue };
        let figure_name = if metric == Metric::RunsPerS { "runs/s" } else { "messages/s" };
        for (engine, limit) in engines {
            let Some(quartiles) = peer.figure(metric, engine).and_then(Figure::factor) else { continue };
            let target = Target::AtLeast(limit);
            let (factor, wanted, verdict) = (factor(quartiles), target.text(), target.verdict(quartiles));
            let row = [name, engine, figure_name, factor.as_str(), wanted.as_str(), verdict.name()];
            table.rows.push(row.map(str::to_owned).into());
        }
    }
    table
}

fn durability(results: &Results) -> Table {
    let mut table = Table::new("Durable when the client has its answer", ["program", "version", "durable", "evidence"]);
    if !results.compared.is_empty() {
        let version = results.ostler.split_whitespace().nth(1).unwrap_or_default().to_owned();
        table.rows.push(vec!["Ostler".into(), version, OUR_DURABILITY.into(), OUR_EVIDENCE.into()]);
    }
    for peer in &results.compared {
        let Compared { name, version, durability, evidence, .. } = peer.clone();
        table.rows.push(vec![name, version, durability, evidence]);
    }
    table
}

fn syncs(compared: &[Compared]) -> Table {
    let header = ["rounds with", "sync, µs", "CPU of other programs, %"];
    let mut table =
        Table::new("The machine: a write of 8 KiB with its fdatasync before each round, and its load", header);
    for peer in compared {
        let join = |values: &[f64]| values.iter().map(|value| format!("{value:.0}")).collect::<Vec<_>>().join(", ");
        let others: Vec<f64> = peer.others_share.iter().map(|share| share * 100.0).collect();
        table.rows.push(vec![peer.name.clone(), join(&peer.fsync_us), join(&others)]);
    }
    table
}

fn absent(results: &Results) -> Table {
    let mut table = Table::new("Without figures", ["peer", "reason"]);
    table.rows = results.absent.iter().map(|absent| vec![absent.name.clone(), absent.reason.clone()]).collect();
    table
}

/// Our value, the peer's, and the factor if it is wanted; dashes for a figure that was not measured.
fn values(figure: Option<&Figure>, with_factor: bool) -> Vec<String> {
    let mut cells = match figure {
        Some(figure) => vec![number(figure.ours()), number(figure.theirs())],
        None => vec!["-".to_owned(); 2],
    };
    if with_factor {
        cells.push(figure.and_then(Figure::factor).map_or("-".to_owned(), factor));
    }
    cells
}

/// As `2.5 × (2.0 to 4.0)`.
pub(crate) fn factor(factor: Quartiles) -> String {
    let digits = |value: f64| match value {
        10.0.. => format!("{value:.0}"),
        0.1.. => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    };
    format!("{} × ({} to {})", digits(factor.median), digits(factor.lower), digits(factor.upper))
}

fn number(value: f64) -> String {
    match value.abs() {
        1_000.0.. => {
            let whole = format!("{value:.0}");
            let (thousands, rest) = whole.split_at(whole.len() - 3);
            format!("{thousands},{rest}")
        }
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::example;
    use super::*;

    #[test]
    fn the_terminal_gets_every_figure_and_every_missing_peer() {
        let text = text(&example());
        let line = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap_or_default().to_owned();
        let words: Vec<String> = line("echo  SQLite").split_whitespace().map(str::to_owned).collect();
        assert_eq!(words[2..10], ["100", "40.0", "2.50", "×", "(2.25", "to", "3.25)", "0.50"], "{text}");
        assert!(line("queue  SQLite").contains("9,000       3,000"), "{text}");
        assert!(line("other  ").contains("it does not start"), "{text}");
        assert!(text.contains("\n  echo: 1.2: nothing: strace\n"), "{text}");
        let machine: Vec<&str> = text.lines().filter(|line| line.contains("50, 60, 400")).collect();
        assert!(machine[0].starts_with("echo ") && machine[0].ends_with("0, 25, 50"), "{text}");
        assert!(text.contains("do not quote"), "{text}");
        // Postgres was not measured, so there is no row for it.
        assert!(!text.contains("echo  Postgres"), "{text}");
    }

    #[test]
    fn factors_are_compared_with_their_targets() {
        let mut results = example();
        // The factor of its runs is 2.5, with quartiles from 2.25 to 3.25.
        results.compared[0].name = "Restate".into();
        let row = |results: &Results| targets(&results.compared).rows.concat();
        assert_eq!(row(&results), ["Restate", "SQLite", "runs/s", "2.50 × (2.25 to 3.25)", "≥ 3", "FAIL, noisy"]);
        results.compared[0].name = "agentscope-runtime".into();
        assert_eq!(row(&results)[4..], ["≥ 5", "FAIL"]);
        results.compared[0].name = "stateless echo".into();
        assert_eq!(row(&results)[4..], ["≥ 1", "pass"]);
        for (name, ..) in TARGETS {
            assert!(super::super::PEERS.iter().any(|peer| peer.name == name), "{name} is no peer");
        }
    }

    #[test]
    fn a_bar_in_a_cell_does_not_end_it() {
        let page = tables(&example()).last().unwrap().markdown();
        assert_eq!(page, "| peer | reason |\n|---|---|\n| other | it does not start \\| here |\n");
    }

    #[test]
    fn numbers_have_three_digits_or_so() {
        assert_eq!([0.123, 1.0, 12.34, 123.4, 12_345.6].map(number), ["0.12", "1.00", "12.3", "123", "12,346"]);
        assert_eq!(factor(Quartiles { lower: 0.012, median: 9.5, upper: 10.6 }), "9.50 × (0.012 to 11)");
    }
}
