//! Attention over keys and values that lie in pages, as a cache of many sequences does.

use crate::dtype::DType;
use crate::error::{ErrorKind, number_of};
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::attention::paged::{Paged, paged};
use crate::ops::attention::scaled::{scores, weights};
use crate::ops::check::indices;
use crate::{Backward, TensorFuture};

/// Of `(q, k, v, table, lengths)`, as [`Paged`] has them. Queries are float32 or float64, keys and
/// values of that type or, beside float32, halves.
#[derive(Clone, Copy)]
pub(crate) struct PagedAttention {
    pub scale: f64,
    /// What scores are bent to stay below.
    pub cap: Option<f64>,
    /// A query sees so many keys at most, the last ones.
    pub window: Option<usize>,
    pub causal: bool,
}

impl Operation for PagedAttention {
    fn name(&self) -> &str {
        "paged_attention"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let [q, k, v, table, lengths] = [0, 1, 2, 3, 4].map(|i| inputs[i]);
        indices(table)?;
        indices(lengths)?;
        let typed = k.dtype == q.dtype
            || q.dtype == DType::F32 && k.dtype.is_float() && k.dtype.size() == 2;
        if !matches!(q.dtype, DType::F32 | DType::F64) || !typed || v.dtype != k.dtype {
            return Err(Refusal::dtype(format!("{}, {} and {}", q.dtype, k.dtype, v.dtype)));
        }
        let fits = match (
            &q.shape[..],
            &k.shape[..],
            &v.shape[..],
            &table.shape[..],
            &lengths.shape[..],
        ) {
            (
                &[batch, _, heads, width],
                &[pages, page, shared, same],
                &[p, n, s, _],
                &[b, _],
                &[rows],
            ) => {
                let paged = [p, n, s] == [pages, page, shared] && page > 0;
                let grouped = if shared == 0 { heads == 0 } else { heads.is_multiple_of(shared) };
                paged && grouped && width == same && [b, rows] == [batch; 2]
            }
            _ => false,
        };
        if !fits {
            let shapes = inputs.iter().map(|m| m.shape.to_string()).collect::<Vec<_>>().join(", ");
            return Err(Refusal::shape(shapes));
        }
        let mut shape = q.shape.clone();
        shape.dims_mut()[3] = v.shape[3];
        Ok(Meta { shape, dtype: q.dtype })
    }

    fn estimate_ns(&self, inputs: &[&Meta], output: &Meta) -> u64 {
        // How long the sequences are, nobody knows yet: half of what there is room for.
        let [q, k, v, table] = [0, 1, 2, 3].map(|i| &inputs[i].shape);
        let rows = q[..3].iter().fold(1u64, |rows, &n| rows.saturating_mul(n as u64));
        let keys = (table[1] as u64).saturating_mul(k[1] as u64) / 2;
        let keys = self.window.map_or(keys, |window| keys.min(window as u64));
        let widths = (q[3] as u64).saturating_add(v[3] as u64).saturating_add(20);
        let scores = rows.saturating_mul(keys).saturating_mul(widths) / 20;
        scores.max(output.shape.numel() as u64 / 4).saturating_add(500)
    }

    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let [q, k, v, table, lengths] = [0, 1, 2, 3, 4].map(|i| run.inputs[i]);
        let &PagedAttention { scale, cap, window, causal } = self;
        let of = Paged { q, k, v, table, lengths, scale, cap, window, causal };
        paged(&of, &run.output, run.parallel).map_err(crate::ops::check::out_of_range)
    }

    fn gradient_needs(&self, _: &[bool]) -> Needs {
        Needs::inputs(&[0, 1, 2, 3, 4])
    }

    /// With the pages of each row one after the other, and the matrix of scores.
    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        let [q, k, v, table, lengths] = [0, 1, 2, 3, 4].map(|i| call.input(i).clone());
        let (device, shapes) =
            (q.device(), [q.dims().to_vec(), k.dims().to_vec(), v.dims().to_vec()]);
        let &[batch, queries, heads, _] = &shapes[0][..] else {
            unreachable!("the shape rule saw it")
        };
        let (page, shared, most) = (shapes[1][1], shapes[1][2], table.dims()[1]);
        // No result, or no keys that it comes from: zeros, whatever the other sizes are.
        if call.output_meta().shape.numel() == 0 || v.numel() == 0 {
            return Ok(());
        }
        let all = most.checked_mul(page).filter(|keys| keys.checked_mul(batch).is_some());
        let Some(keys) = all else {
            let (rows, pages) = (number_of(batch, "row", "rows"), number_of(most, "page", "pages"));
            let message = format!("out of memory: {rows} of {pages} of {page}");
            return Err(Refusal { kind: ErrorKind::OutOfMemory, message });
        };
        let group = heads.checked_div(shared).unwrap_or(0);
        let lengths = lengths.to_dtype(DType::I64).reshape([batch, 1]);
        // Pages beyond a row's length may name anything: there it is the first one, which nobody
        // sees.
        let used = (device.arange(0, most as i64, 1) * page as i64).lt(&lengths);
        let starts = used.where_cond(table.to_dtype(DType::I64), 0) * page as i64;
        let places = (starts.unsqueeze(2) + device.arange(0, page as i64, 1)).reshape(-1);
        let wide = |x: &TensorFuture| {
            let slots =
                x.reshape([x.dims()[0] * page, shared, x.dims()[3]]).index_select(0, &places);
            let rows = slots.reshape([batch, keys, shared, x.dims()[3]]).to_dtype(q.dtype());
            rows.permute([0, 2, 1, 3]).unsqueeze(2)
        };
        let grouped = |x: &TensorFuture| {
            x.reshape([batch, queries, shared, group, x.dims()[3]]).permute([0, 2, 3, 1, 4])
        };
        let (of_q, of_k, of_v, up) = (grouped(&q), wide(&k), wide(&v), grouped(call.upstream()));
        let key = device.arange(0, keys as i64, 1);
        let limits = match self.causal {
            true => &lengths - queries as i64 + 1 + device.arange(0, queries as i64, 1),
            false => lengths.expand([batch, queries]),
        };
        let limits = limits.unsqueeze(2);
        let mut seen = key.lt(&limits);
        if let Some(window) = self.window {
            // No row is longer than an int64 says.
            let window = i64::try_from(window).unwrap_or(i64::MAX);
            seen = seen.logical_and(key.ge(limits.clamp_min(0) - window));
        }
        let seen = seen.reshape([batch, 1, 1, queries, keys]);
        let weights = weights(&of_q, &of_k, Some(&seen), (self.scale, self.cap), false);
        let of_weights = up.matmul(of_v.transpose(-2, -1));
        let mean = (&weights * &of_weights).sum_keepdim(-1);
        let mut of_scores = &weights * (of_weights - mean) * self.scale;
        if let Some(cap) = self.cap {
            let bent = (scores(&of_q, &of_k, self.scale) / cap).tanh();
            of_scores = of_scores * (1.0 - bent.square());
        }
        call.give(0, |_| of_scores.matmul(&of_k).permute([0, 3, 1, 2, 4]).reshape(&shapes[0][..]));
        let back = |call: &Backward<'_>, i: usize, flow: TensorFuture| {
            let (shape, width) = (&shapes[i], shapes[i][3]);
            let rows = flow.sum(2).permute([0, 2, 1, 3]).reshape([batch * keys, shared * width]);
            let zeros = call.zeros(i).reshape([shape[0] * page, shared * width]);
            let at = places.unsqueeze(1).expand([batch * keys, shared * width]);
            zeros.scatter_add(0, at, rows.to_dtype(zeros.dtype())).reshape(&shape[..])
        };
        call.give(1, |call| back(call, 1, of_scores.transpose(-2, -1).matmul(&of_q)));
        call.give(2, |call| back(call, 2, weights.transpose(-2, -1).matmul(&up)));
        Ok(())
    }
}
