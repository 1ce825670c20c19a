//! The batch equation: `train = micro x accumulation x nodes`.

use crate::plan::BatchPlan;

/// The batch keys as given.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BatchKeys {
    /// `train_batch_size`.
    pub train: Option<u64>,
    /// `train_micro_batch_size_per_gpu`.
    pub micro: Option<u64>,
    /// `gradient_accumulation_steps`.
    pub accumulation: Option<u64>,
}

/// Why batch keys do not go together. Nothing was started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BatchError {
    /// Neither the global nor the micro-batch is known.
    #[error("neither train_batch_size nor train_micro_batch_size_per_gpu is given")]
    Missing,
    /// All numbers are known and do not multiply out.
    #[error(
        "train_batch_size {train} is not micro-batch {micro} x accumulation {accumulation} x \
         {nodes} nodes = {product}"
    )]
    Product {
        /// `train_batch_size`.
        train: u64,
        /// Given or derived.
        micro: u64,
        /// Given or derived.
        accumulation: u64,
        /// The data-parallel size of the run.
        nodes: u64,
        /// What they multiply out to.
        product: u128,
    },
    /// The global batch cannot be shared equally.
    #[error(
        "train_batch_size {train} cannot be shared by {by} ({what}): it is no multiple of {by}"
    )]
    Indivisible {
        /// `train_batch_size`.
        train: u64,
        /// What it should be a multiple of.
        by: u64,
        /// Where that comes from.
        what: &'static str,
    },
    /// The product is absurd.
    #[error("the batch has more than 2^63 sequences")]
    TooLarge,
}

impl BatchError {
    /// What to do about it.
    #[must_use]
    pub fn fix(&self) -> String {
        match *self {
            BatchError::Missing => "give one of them; the others follow".to_owned(),
            BatchError::Product { train, micro, accumulation, nodes, product } => {
                let mut fixes = vec![format!("train_batch_size {product}")];
                if train % (micro * nodes) == 0 {
                    fixes.push(format!("gradient_accumulation_steps {}", train / (micro * nodes)));
                }
                if train % (accumulation * nodes) == 0 {
                    let micro = train / (accumulation * nodes);
                    fixes.push(format!("train_micro_batch_size_per_gpu {micro}"));
                }
                format!("set {}; or leave one of the three out", fixes.join(", or "))
            }
            BatchError::Indivisible { train, by, .. } => {
                let below = train / by * by;
                let above = below.saturating_add(by);
                if below == 0 {
                    format!("set train_batch_size {above}")
                } else {
                    format!("set train_batch_size {below} or {above}")
                }
            }
            BatchError::TooLarge => "make the numbers smaller".to_owned(),
        }
    }
}

/// Derives what is missing, by DeepSpeed's rules, for a run of `nodes` nodes.
///
/// # Errors
/// When nothing says how large the batch is, or the numbers do not multiply out.
pub fn derive(keys: BatchKeys, nodes: u64) -> Result<BatchPlan, BatchError> {
    let share = |train: u64, by: Option<u64>, what| match by {
        Some(by) if by > 0 && train.is_multiple_of(by) => Ok(train / by),
        by => Err(BatchError::Indivisible { train, by: by.unwrap_or(u64::MAX), what }),
    };
    let product = |a: u64, b: u64| a.checked_mul(b).ok_or(BatchError::TooLarge);
    let (train, micro, accumulation) = match (keys.train, keys.micro, keys.accumulation) {
        (Some(t), Some(m), Some(g)) => (t, m, g),
        (Some(t), Some(m), None) => {
            let what = "micro-batch x nodes";
            (t, m, share(t, m.checked_mul(nodes), what)?)
        }
        (Some(t), None, Some(g)) => {
            let what = "accumulation x nodes";
            (t, share(t, g.checked_mul(nodes), what)?, g)
        }
        (Some(t), None, None) => (t, share(t, Some(nodes), "nodes")?, 1),
        (None, Some(m), g) => {
            let g = g.unwrap_or(1);
            (product(product(m, g)?, nodes)?, m, g)
        }
        (None, None, _) => return Err(BatchError::Missing),
    };
    let all = u128::from(micro) * u128::from(accumulation);
    let all = all.checked_mul(u128::from(nodes)).ok_or(BatchError::TooLarge)?;
    if all > 1 << 63 || train > 1 << 63 {
        return Err(BatchError::TooLarge);
    }
    if all != u128::from(train) {
        return Err(BatchError::Product { train, micro, accumulation, nodes, product: all });
    }
    Ok(BatchPlan { train, micro, accumulation, nodes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(train: u64, micro: u64, accumulation: u64) -> BatchKeys {
        let some = |n| (n > 0).then_some(n);
        let (train, micro, accumulation) = (some(train), some(micro), some(accumulation));
        BatchKeys { train, micro, accumulation }
    }

    fn triple(k: BatchKeys, nodes: u64) -> Option<(u64, u64, u64)> {
        derive(k, nodes).ok().map(|b| (b.train, b.micro, b.accumulation))
    }

    /// DeepSpeed's own four vectors, for two nodes.
    #[test]
    fn deepspeeds_vectors() {
        for (t, m, g, ok) in
            [(32, 16, 1, true), (32, 8, 2, true), (33, 17, 2, false), (32, 18, 1, false)]
        {
            assert_eq!(derive(keys(t, m, g), 2).is_ok(), ok, "{t} {m} {g}");
        }
    }

    /// Case C02: what follows from one or two of the three; 0 stands for "not given".
    #[test]
    fn the_missing_numbers_follow() {
        for (given, nodes, expected) in [
            (keys(0, 3, 4), 2, Some((24, 3, 4))),
            (keys(24, 0, 0), 2, Some((24, 12, 1))),
            (keys(24, 0, 4), 2, Some((24, 3, 4))),
            (keys(25, 0, 0), 2, None),
            (keys(0, 0, 0), 2, None),
            (keys(0, 0, 4), 2, None),
            (keys(0, 5, 0), 3, Some((15, 5, 1))),
            (keys(24, 4, 0), 2, Some((24, 4, 3))),
            (keys(2, 0, 0), 4, None),
        ] {
            assert_eq!(triple(given, nodes), expected, "{given:?} on {nodes}");
        }
    }

    /// Case C01: all four numbers, the product and the ways out are named.
    #[test]
    fn a_wrong_product_names_everything() {
        let error = derive(keys(48, 4, 2), 2).unwrap_err();
        assert_eq!(
            error.to_string(),
            "train_batch_size 48 is not micro-batch 4 x accumulation 2 x 2 nodes = 16"
        );
        assert_eq!(
            error.fix(),
            "set train_batch_size 16, or gradient_accumulation_steps 6, or \
             train_micro_batch_size_per_gpu 12; or leave one of the three out"
        );
    }

    #[test]
    fn absurd_numbers_do_not_wrap() {
        let max = i64::MAX as u64;
        assert!(derive(keys(0, max, max), max).is_err());
        assert!(derive(keys(max, max, max), max).is_err());
        assert!(derive(keys(max, max, 0), max).is_err());
    }
}
