//! Bar charts as SVG: panels of bars that are compared with each other, ours in a colour of their own.

use std::fmt::Write;

use super::figures::Summary;
use super::report::{SCENARIOS, figure};

const WIDTH: f64 = 900.0;
/// Where bars begin; labels stand left of it.
const LEFT: f64 = 270.0;
/// The longest bar; its figure stands right of it.
const LONGEST: f64 = 520.0;
const BAR: f64 = 18.0;
const ROW: f64 = 24.0;
const HEAD: f64 = 46.0;
const GAP: f64 = 26.0;
/// A panel whose figures are further apart than this has a logarithmic scale.
const LINEAR_MAX: f64 = 20.0;

/// Bars that are compared with each other.
pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) more_is_better: bool,
    pub(crate) bars: Vec<Bar>,
}

/// One figure.
pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) value: f64,
    /// In the colour of our own.
    pub(crate) ours: bool,
}

/// A panel for every scenario that another system has, too, the best first.
pub(crate) fn of_scenarios(summaries: &[Summary]) -> Vec<Panel> {
    let mut panels = Vec::new();
    for (scenario, title, more_is_better) in SCENARIOS {
        let of_scenario = summaries.iter().filter(|row| row.scenario == scenario);
        let mut bars: Vec<Bar> = of_scenario
            .map(|row| Bar { label: row.label(), value: row.median(), ours: row.is_ours() })
            .filter(|bar| bar.value > 0.0)
            .collect();
        bars.sort_by(|one, another| one.value.total_cmp(&another.value));
        if more_is_better {
            bars.reverse();
        }
        if bars.iter().any(|bar| !bar.ours) {
            panels.push(Panel { title: title.to_owned(), more_is_better, bars });
        }
    }
    panels
}

/// The whole picture; panels without bars are left out.
pub(crate) fn draw(panels: &[Panel]) -> String {
    let mut body = String::new();
    let mut top = 12.0;
    for shown in panels.iter().filter(|shown| !shown.bars.is_empty()) {
        top = panel(&mut body, top, shown) + GAP;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{top}\" viewBox=\"0 0 {WIDTH} {top}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{body}</svg>\n"
    )
}

/// Draws one panel and gives where it ends.
fn panel(body: &mut String, top: f64, panel: &Panel) -> f64 {
    let Panel { title, more_is_better, bars } = panel;
    let values = || bars.iter().map(|bar| bar.value);
    let (least, most) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
    let scale = Scale::of(least, most);
    let better = if *more_is_better { "longer is better" } else { "shorter is better" };
    let kind = if scale.logarithmic { ", logarithmic scale" } else { "" };
    let _ = writeln!(
        body,
        "<text x=\"16\" y=\"{}\" font-size=\"15\" font-weight=\"600\" fill=\"#1a1a1a\">{}</text>",
        top + 16.0,
        escape(title)
    );
    let _ =
        writeln!(body, "<text x=\"16\" y=\"{}\" font-size=\"12\" fill=\"#6b6b6b\">{better}{kind}</text>", top + 34.0);
    let bottom = top + HEAD + bars.len().min(64) as f64 * ROW;
    for tick in scale.ticks() {
        let x = LEFT + scale.length(tick);
        let _ = writeln!(
            body,
            "<line x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{bottom:.1}\" stroke=\"#e4e4e4\"/>",
            top + HEAD - 4.0
        );
        let _ = writeln!(
            body,
            "<text x=\"{x:.1}\" y=\"{:.1}\" font-size=\"11\" fill=\"#8a8a8a\" text-anchor=\"middle\">{}</text>",
            bottom + 12.0,
            short(tick)
        );
    }
    for (bar, y) in bars.iter().zip((0u8..64).map(|at| top + HEAD + f64::from(at) * ROW)) {
        let (length, middle) = (scale.length(bar.value).max(1.0), y + BAR / 2.0 + 4.5);
        let (colour, weight) = if bar.ours { ("#0b7285", "600") } else { ("#adb5bd", "400") };
        let label = escape(&bar.label);
        let _ = writeln!(
            body,
            "<text x=\"{}\" y=\"{middle:.1}\" text-anchor=\"end\" font-weight=\"{weight}\" fill=\"#1a1a1a\">{label}</text>",
            LEFT - 8.0
        );
        let _ = writeln!(
            body,
            "<rect x=\"{LEFT}\" y=\"{y:.1}\" width=\"{length:.1}\" height=\"{BAR}\" rx=\"2\" fill=\"{colour}\"/>"
        );
        let _ = writeln!(
            body,
            "<text x=\"{:.1}\" y=\"{middle:.1}\" font-weight=\"{weight}\" fill=\"#1a1a1a\">{}</text>",
            LEFT + length + 6.0,
            figure(bar.value)
        );
    }
    bottom + 14.0
}

/// From a figure to the length of its bar.
struct Scale {
    logarithmic: bool,
    /// The power of ten where a logarithmic bar has no length.
    floor: f64,
    most: f64,
}

impl Scale {
    fn of(least: f64, most: f64) -> Self {
        Self { logarithmic: most > least * LINEAR_MAX, floor: least.log10().floor(), most }
    }

    fn length(&self, value: f64) -> f64 {
        let share = if self.logarithmic {
            (value.log10() - self.floor) / (self.most.log10() - self.floor)
        } else {
            value / self.most
        };
        share * LONGEST
    }

    /// Powers of ten, or four round steps.
    fn ticks(&self) -> Vec<f64> {
        if self.logarithmic {
            let powers = (0u8..12).map(|power| 10f64.powf(self.floor + f64::from(power)));
            return powers.take_while(|&tick| tick <= self.most).collect();
        }
        let rough = self.most / 4.0;
        let power = 10f64.powf(rough.log10().floor());
        let step =
            [1.0, 2.0, 5.0, 10.0].map(|times| times * power).into_iter().find(|&step| step >= rough).unwrap_or(rough);
        (0u8..6).map(|times| f64::from(times) * step).take_while(|&tick| tick <= self.most).collect()
    }
}

/// A tick without digits that say nothing.
fn short(tick: f64) -> String {
    if tick >= 10_000.0 { format!("{}k", tick / 1000.0) } else { format!("{}", (tick * 1000.0).round() / 1000.0) }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_bar_is_the_largest_figure_on_either_scale() {
        for (least, most) in [(50.0, 100.0), (3.0, 9000.0), (0.02, 7.0)] {
            let scale = Scale::of(least, most);
            assert!((scale.length(most) - LONGEST).abs() < 1e-9);
            assert!(scale.length(least) >= 0.0);
            assert!(scale.ticks().len() >= 2, "{:?}", scale.ticks());
            assert!(scale.ticks().iter().all(|&tick| scale.length(tick) <= LONGEST));
        }
        assert!(Scale::of(3.0, 9000.0).logarithmic);
        assert!(!Scale::of(50.0, 100.0).logarithmic);
    }
}
