//! "Did you mean": the nearest known name by edit distance.

/// Names longer than this are not compared: no key is.
const MAX_LENGTH: usize = 64;

/// The known name that differs least from `given`, if at most a third of it differs.
pub fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if given.len() > MAX_LENGTH {
        return None;
    }
    let given = given.to_lowercase();
    let limit = given.chars().count().div_ceil(3);
    known
        .into_iter()
        .map(|name| (distance(&given, &name.to_lowercase()), name))
        .filter(|&(d, _)| d <= limit)
        .min_by_key(|&(d, _)| d)
        .map(|(_, name)| name)
}

/// Optimal string alignment: insertions, deletions, substitutions and swaps of neighbours.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = vec![0; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let differs = usize::from(a[i - 1] != b[j - 1]);
            row[j] = (last[j] + 1).min(row[j - 1] + 1).min(last[j - 1] + differs);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (a, b, d) in [("", "", 0), ("abc", "", 3), ("stag", "stage", 1), ("ab", "ba", 1)] {
            assert_eq!(distance(a, b), d, "{a} {b}");
        }
    }

    #[test]
    fn the_nearest_name_is_found_and_a_far_one_is_not() {
        let known = ["gradient_clipping", "gradient_accumulation_steps", "steps_per_print"];
        assert_eq!(nearest("gradient_cliping", known), Some("gradient_clipping"));
        assert_eq!(nearest("Gradient_Clipping", known), Some("gradient_clipping"));
        assert_eq!(nearest("gradent_acumulation_step", known), Some("gradient_accumulation_steps"));
        assert_eq!(nearest("banana", known), None);
        assert_eq!(nearest(&"x".repeat(1000), known), None);
    }
}
