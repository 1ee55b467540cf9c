//! Flame graphs: stacks of samples as one picture, in which a function is as wide as its share of the samples.

use std::collections::BTreeMap;
use std::fmt::Write;

const WIDTH: f64 = 1_400.0;
const ROW: f64 = 16.0;
const HEAD: f64 = 30.0;
/// Functions narrower than this are left out.
const WIDTH_MIN: f64 = 1.2;
/// About the width of a letter.
const LETTER: f64 = 6.2;
/// Fewer letters than this say nothing.
const LETTERS_MIN: usize = 4;

/// One function below another, and what lies above it.
#[derive(Default)]
struct Frame {
    samples: u64,
    above: BTreeMap<String, Frame>,
}

/// The stacks in the output of `perf script`, the outermost function first, each with its number of samples.
pub(super) fn collapse(script: &str) -> Vec<(Vec<String>, u64)> {
    let mut stacks: BTreeMap<Vec<String>, u64> = BTreeMap::new();
    for sample in script.split("\n\n") {
        // The first line names the thread; the others go from the innermost function outwards.
        let functions = sample.lines().filter(|line| !line.trim().is_empty()).skip(1).filter_map(|line| {
            let (_address, name) = line.trim().split_once(' ')?;
            Some(short(name))
        });
        let mut stack: Vec<String> = functions.collect();
        if stack.is_empty() {
            continue;
        }
        stack.reverse();
        *stacks.entry(stack).or_default() += 1;
    }
    stacks.into_iter().collect()
}

/// A name without its hash and its offset.
fn short(name: &str) -> String {
    let name = name.split("+0x").next().unwrap_or(name);
    let name = name.rsplit_once("::h").filter(|(_, hash)| hash.len() == 16).map_or(name, |(name, _)| name);
    name.to_owned()
}

/// The picture.
pub(super) fn draw(title: &str, stacks: &[(Vec<String>, u64)]) -> String {
    let mut root = Frame::default();
    for (stack, samples) in stacks {
        root.samples += samples;
        let mut frame = &mut root;
        for name in stack {
            frame = frame.above.entry(name.clone()).or_default();
            frame.samples += samples;
        }
    }
    let mut rows = String::new();
    let scale = WIDTH / root.samples.max(1) as f64;
    let depth = draw_above(&mut rows, &root, 0.0, 0, scale);
    let height = HEAD + ROW * (depth as f64 + 1.0);
    let title = escape(title);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" font-family=\"monospace\" font-size=\"10\">\n\
         <text x=\"6\" y=\"18\" font-size=\"13\">{title}: {} samples, the outermost function on top</text>\n{rows}</svg>\n",
        root.samples
    )
}

/// Draws what lies above a frame; says how many rows deep it goes.
fn draw_above(rows: &mut String, frame: &Frame, left: f64, depth: usize, scale: f64) -> usize {
    let mut left = left;
    let mut deepest = depth;
    for (name, above) in &frame.above {
        let width = above.samples as f64 * scale;
        if width >= WIDTH_MIN {
            let top = HEAD + ROW * depth as f64;
            // Neighbours differ in colour, and a function has the same one everywhere.
            let shade = name.bytes().fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into())) % 60;
            let _ = write!(
                rows,
                "<g><title>{} ({} samples)</title><rect x=\"{left:.1}\" y=\"{top:.0}\" width=\"{width:.1}\" \
                 height=\"{:.0}\" fill=\"hsl({},70%,65%)\" stroke=\"white\" stroke-width=\"0.4\"/>",
                escape(name),
                above.samples,
                ROW - 1.0,
                10 + shade
            );
            let fits = |at: usize| (at as f64 + 1.0) * LETTER <= width - 4.0;
            let shown: String =
                name.chars().enumerate().take_while(|(at, _)| fits(*at)).map(|(_, letter)| letter).collect();
            if shown.len() >= LETTERS_MIN {
                let _ = write!(rows, "<text x=\"{:.1}\" y=\"{:.0}\">{}</text>", left + 2.0, top + 11.0, escape(&shown));
            }
            rows.push_str("</g>\n");
            deepest = deepest.max(draw_above(rows, above, left, depth + 1, scale));
        }
        left += width;
    }
    deepest
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_stacks_are_one_and_a_function_is_as_wide_as_its_samples() {
        let script = "ff-bench\n\t 1 inner::h0123456789abcdef+0x10\n\t 2 outer\n\n\
                      ff-bench\n\t 3 inner::h0123456789abcdef+0x20\n\t 2 outer\n\n\
                      ff-bench\n\t 4 Vec<T>\n\t 2 outer\n";
        let stacks = collapse(script);
        let stack = |names: [&str; 2]| names.map(str::to_owned).to_vec();
        assert_eq!(stacks, [(stack(["outer", "Vec<T>"]), 1), (stack(["outer", "inner"]), 2)]);
        let picture = draw("a & b", &stacks);
        assert!(picture.contains("a &amp; b: 3 samples") && picture.contains("Vec&lt;T&gt; (1 samples)"), "{picture}");
        assert!(picture.contains("width=\"933.3\""), "{picture}");
    }
}
