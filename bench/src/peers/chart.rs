//! The chart of a comparison: for each peer and engine, how many times as much work Ostler does in the same time. Plain
//! SVG without a background; its colours are readable on white and on black, and its text follows the reader's choice.

use std::fmt::Write;

use super::results::{Metric, Quartiles, Results};
use super::table::{POSTGRES, SQLITE, factor};

const WIDTH: f64 = 760.0;
/// Where the bars begin and end; names are on the left, values on the right.
const LEFT: f64 = 210.0;
const RIGHT: f64 = 600.0;
const TOP: f64 = 74.0;
const ROW: f64 = 22.0;
const BAR: f64 = 14.0;
/// Between two peers.
const GAP: f64 = 12.0;
/// Ticks of the logarithmic axis.
const TICKS: [f64; 15] =
    [0.015625, 0.03125, 0.0625, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];

const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#24292f}.small{font-size:11px;fill:#57606a}\
                     .title{font-size:15px;font-weight:600}.SQLite{fill:#2f81f7}.Postgres{fill:#8957e5}\
                     line{stroke:#8c959f}.one{stroke-width:2}.tick{stroke-dasharray:2 3;opacity:.6}\
                     .spread{stroke:#d29922;stroke-width:2}\
                     @media(prefers-color-scheme:dark){text{fill:#e6edf3}.small{fill:#9198a1}}";

struct Bar<'a> {
    peer: &'a str,
    engine: &'static str,
    factor: Quartiles,
}

pub(crate) fn svg(results: &Results) -> String {
    let bars = bars(results);
    let axis = Axis::around(&bars);
    let mut body = String::new();
    let mut y = TOP;
    let mut last = "";
    for bar in &bars {
        if bar.peer != last {
            y += if last.is_empty() { 0.0 } else { GAP };
            write_text(&mut body, "", LEFT - 10.0, y + BAR - 2.0, "end", bar.peer);
            last = bar.peer;
        }
        write_bar(&mut body, &axis, bar, y);
        y += ROW;
    }
    let height = y + 34.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" role=\"img\">\n\
         <title>Ostler's throughput as a multiple of each peer's</title>\n<style>{STYLE}</style>\n"
    );
    write_text(&mut out, "title", 16.0, 24.0, "start", "Ostler's throughput as a multiple of each peer's");
    let legend =
        "Median and quartiles of paired rounds; right of 1, Ostler is faster. Ostler syncs the disk for each run.";
    write_text(&mut out, "small", 16.0, 44.0, "start", legend);
    for (engine, x) in [(SQLITE, LEFT), (POSTGRES, LEFT + 130.0)] {
        let _ = writeln!(out, "<rect class=\"{engine}\" x=\"{x:.1}\" y=\"53\" width=\"12\" height=\"12\"/>");
        write_text(&mut out, "small", x + 18.0, 63.0, "start", &format!("Ostler on {engine}"));
    }
    for tick in axis.ticks() {
        let (x, class) = (axis.x(tick), if tick == 1.0 { "one" } else { "tick" });
        let _ = writeln!(out, "<line class=\"{class}\" x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{y:.1}\"/>");
        write_text(&mut out, "small", x, y + 18.0, "middle", &format!("{tick} ×"));
    }
    out + &body + "</svg>\n"
}

/// Runs where they were measured, otherwise messages.
fn bars(results: &Results) -> Vec<Bar<'_>> {
    let mut bars = vec![];
    for peer in &results.compared {
        for engine in [SQLITE, POSTGRES] {
            let figure = peer.figure(Metric::RunsPerS, engine).or_else(|| peer.figure(Metric::MessagesPerS, engine));
            if let Some(factor) = figure.and_then(|figure| figure.factor()) {
                bars.push(Bar { peer: &peer.name, engine, factor });
            }
        }
    }
    bars
}

/// Logarithmic, because a factor of a half is as far from one as a factor of two.
struct Axis {
    low: f64,
    high: f64,
}

impl Axis {
    /// From tick to tick, with all values and 1 inside.
    fn around(bars: &[Bar]) -> Self {
        let values = || bars.iter().flat_map(|bar| [bar.factor.lower, bar.factor.upper]).chain([1.0]);
        let (least, most) = (values().fold(1.0, f64::min), values().fold(1.0, f64::max));
        let low = TICKS.iter().rev().copied().find(|tick| *tick <= least * 0.999).unwrap_or(TICKS[0]);
        let high = TICKS.iter().copied().find(|tick| *tick >= most * 1.001).unwrap_or(TICKS[TICKS.len() - 1]);
        Self { low, high }
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        TICKS.into_iter().filter(|tick| (self.low..=self.high).contains(tick))
    }

    fn x(&self, factor: f64) -> f64 {
        let share = (factor / self.low).ln() / (self.high / self.low).ln();
        LEFT + (RIGHT - LEFT) * share.clamp(0.0, 1.0)
    }
}

/// From 1 to the median, with a line from quartile to quartile.
fn write_bar(out: &mut String, axis: &Axis, bar: &Bar, y: f64) {
    let (one, value) = (axis.x(1.0), axis.x(bar.factor.median));
    let (x, width) = (one.min(value), (one - value).abs().max(1.0));
    let engine = bar.engine;
    let _ = writeln!(out, "<rect class=\"{engine}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BAR}\"/>");
    let (from, to, middle) = (axis.x(bar.factor.lower), axis.x(bar.factor.upper), y + BAR / 2.0);
    let _ =
        writeln!(out, "<line class=\"spread\" x1=\"{from:.1}\" y1=\"{middle:.1}\" x2=\"{to:.1}\" y2=\"{middle:.1}\"/>");
    write_text(out, "small", RIGHT + 12.0, y + BAR - 3.0, "start", &factor(bar.factor));
}

fn write_text(out: &mut String, class: &str, x: f64, y: f64, anchor: &str, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(out, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>");
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::example;
    use super::*;

    #[test]
    fn each_measured_engine_of_each_peer_has_a_bar() {
        let mut results = example();
        results.compared[0].name = "a<b".into();
        let svg = svg(&results);
        assert_eq!(svg.matches("class=\"spread\"").count(), 2, "{svg}");
        assert!(svg.contains("a&lt;b") && svg.contains("2.50 × (2.25 to 3.25)"), "{svg}");
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && svg.contains("prefers-color-scheme:dark"));
    }

    #[test]
    fn half_and_double_are_equally_far_from_one() {
        let bar =
            |median| Bar { peer: "p", engine: SQLITE, factor: Quartiles { lower: median, median, upper: median } };
        let axis = Axis::around(&[bar(0.6), bar(3.0)]);
        assert_eq!(axis.ticks().collect::<Vec<_>>(), [0.5, 1.0, 2.0, 4.0]);
        let (half, one, two) = (axis.x(0.5), axis.x(1.0), axis.x(2.0));
        assert!((one - half - (two - one)).abs() < 1e-9 && half == LEFT);
        // Far values end at the edge instead of outside.
        assert_eq!(Axis::around(&[bar(500.0)]).x(500.0), RIGHT);
        let none = Axis::around(&[]);
        assert!(none.x(1.0).is_finite());
    }
}
