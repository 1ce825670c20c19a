//! Token and position embeddings.

use super::gemm::epilogue::Out;
use super::simd::Element;
use super::{for_rows, row_grain};
use crate::compute::Kit;

/// `y[i] = wte[tokens[i]] (+ wpe[first + i % length])`, in fp32.
///
/// # Panics
/// If a token is beyond the table; the data is checked before training.
pub fn embed<A: Element>(
    kit: &Kit,
    tokens: &[u32],
    wte: &[A],
    positions: Option<(&[A], usize, usize)>,
    (y, width): (&mut [f32], usize),
) {
    let out = Out::new(y, width);
    for_rows(kit, tokens.len(), row_grain(width), &|r| {
        for i in r {
            // SAFETY: rows are disjoint.
            let y = unsafe { out.rows(i, 1) };
            let row = &wte[tokens[i] as usize * width..][..width];
            y.iter_mut().zip(row).for_each(|(y, x)| *y = x.to_f32());
            if let Some((wpe, first, length)) = positions {
                let row = &wpe[(first + i % length) * width..][..width];
                y.iter_mut().zip(row).for_each(|(y, x)| *y += x.to_f32());
            }
        }
    });
}

/// Sums the rows of `dy [n, width]` that belong to one table row, in token order.
///
/// `order` becomes the tokens' indices sorted by (row, index); `rows` the distinct rows, ascending;
/// `sums` their sums. Returns the number of distinct rows.
///
/// # Panics
/// If a buffer is shorter than the tokens.
pub fn sum_rows_by_token(
    kit: &Kit,
    tokens: &[u32],
    dy: &[f32],
    scratch: (&mut [u32], &mut [u32], &mut [u32]),
    sums: &mut [f32],
) -> usize {
    let n = tokens.len();
    let width = dy.len() / n.max(1);
    let (order, rows, starts) = scratch;
    let order = &mut order[..n];
    order.iter_mut().zip(0..).for_each(|(o, i)| *o = i);
    order.sort_unstable_by_key(|&i| (tokens[i as usize], i));
    let mut count = 0;
    for (at, &i) in order.iter().enumerate() {
        let token = tokens[i as usize];
        if count == 0 || rows[count - 1] != token {
            (rows[count], starts[count]) = (token, at as u32);
            count += 1;
        }
    }
    let (order, starts) = (&*order, &*starts);
    let out = Out::new(sums, width);
    for_rows(kit, count, row_grain(width), &|r| {
        for row in r {
            let end = if row + 1 < count { starts[row + 1] as usize } else { n };
            // SAFETY: rows are disjoint.
            let sum = unsafe { out.rows(row, 1) };
            sum.fill(0.0);
            for &i in &order[starts[row] as usize..end] {
                let dy = &dy[i as usize * width..][..width];
                sum.iter_mut().zip(dy).for_each(|(s, d)| *s += d);
            }
        }
    });
    count
}
