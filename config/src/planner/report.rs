//! A recommendation as people read it.

use super::{Candidate, MemoryPlan, Order, Place, Recommendation, Verdict};
use planaria_base::units::format_bytes;
use std::fmt::Write;

impl Recommendation {
    /// A table of all layouts, the fastest that fits marked, with the parts of its memory.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = format!(
            "  {:<42} {:>10} {:>10} {:>10} {:>10}  \n",
            "layout", "memory", "wire/step", "disk/step", "step"
        );
        for (index, candidate) in self.candidates.iter().enumerate() {
            let mark = if self.best == Some(index) { '>' } else { ' ' };
            let why = match (&candidate.verdict, candidate.not_built) {
                (Verdict::Fits, None) => "fits".to_owned(),
                (Verdict::Fits, Some(missing)) => format!("fits; {missing}"),
                (Verdict::TooLarge(why), _) => why.clone(),
            };
            let _ = writeln!(text, "{mark} {} {why}", row(candidate));
        }
        match self.best.map(|index| &self.candidates[index]) {
            Some(best) => {
                let _ = writeln!(text, "\n{}, to the byte:", name(best));
                text.push_str(&best.memory.to_text());
                if let Some(missing) = best.not_built {
                    let _ = writeln!(text, "nothing that is built fits; this would, but {missing}");
                }
            }
            None => {
                text.push_str("\nnothing fits: more nodes, more memory, or a smaller micro-batch\n")
            }
        }
        text
    }
}

impl MemoryPlan {
    /// One line a kind, and the sum of those where the computation is.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for item in &self.items {
            let place = place(item.place);
            let line = format!("  {:<24} {:>16} bytes {place}", item.name, item.bytes);
            let _ = writeln!(text, "{}", line.trim_end());
        }
        let total = self.bytes(Place::Device);
        let _ = writeln!(text, "  {:<24} {total:>16} bytes", "memory in all");
        text
    }
}

fn row(candidate: &Candidate) -> String {
    format!(
        "{:<42} {:>10} {:>10} {:>10} {:>8.3} s ",
        name(candidate),
        format_bytes(candidate.memory.bytes(Place::Device)),
        format_bytes(candidate.traffic.wire_bytes),
        format_bytes(candidate.traffic.disk_bytes),
        candidate.time.step_s,
    )
}

fn name(candidate: &Candidate) -> String {
    let s = &candidate.layout;
    let mut name = format!("stage {}", s.stage);
    if s.optimizer != Place::Device {
        let _ = write!(name, ", states on {}", place(s.optimizer));
    }
    if s.parameters != Place::Device {
        let _ = write!(name, ", values on {}", place(s.parameters));
    }
    if s.recompute {
        name.push_str(", recompute");
    }
    if s.order == Order::BreadthFirst {
        name.push_str(", breadth first");
    }
    name
}

fn place(place: Place) -> &'static str {
    match place {
        Place::Device => "",
        Place::Host => "host",
        Place::Nvme => "nvme",
    }
}
