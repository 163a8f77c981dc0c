//! Values of the kernels, run on the host, beside plain loops.

mod attention;
mod elementwise;
mod halves;
mod indexing;
mod ops;
mod paged;
mod reductions;
mod reference;
mod rows;
mod wide;

use crate::cuda::kernels::Operand;
use crate::on_host::Buffer;

/// Each a promise and what proves it.
pub const TESTS: &[(&str, fn())] = &[
    (
        "a_fused_program_has_the_values_of_its_instructions_whatever_the_strides",
        elementwise::any_strides,
    ),
    ("odd_lengths_and_alignments_change_no_value", elementwise::odd_lengths),
    ("ten_dimensions_are_walked_by_several_launches", elementwise::ten_dimensions),
    ("instructions_are_counted_as_they_are", crate::machine::counting),
    ("offsets_beyond_2_31_are_walked_in_64_bits", wide::far_apart),
    ("an_output_may_lie_in_its_input", elementwise::in_place),
    ("arange_counts_from_the_first_element", elementwise::arange),
    ("philox_gives_the_published_words", elementwise::philox),
    ("unary_ops_are_what_the_table_says_in_every_type", ops::unaries),
    ("binary_ops_are_what_the_table_says_in_every_type", ops::binaries),
    ("ops_on_bool_are_logical", ops::bools),
    ("casts_are_those_of_rust_from_every_type_to_every_type", ops::casts),
    ("random_numbers_are_the_cpus_bit_by_bit", ops::randoms),
    ("reductions_agree_with_plain_loops_over_any_dims_and_strides", reductions::any_dims),
    ("a_sum_of_2_22_ones_is_exact", reductions::ones),
    ("the_first_of_equals_and_the_first_nan_win", reductions::ties),
    ("a_reduction_of_nothing_is_its_neutral_element", reductions::empty),
    ("a_fused_reduction_has_the_bits_of_a_plain_one", reductions::fused),
    ("a_reduction_has_the_same_bits_however_its_operand_lies", reductions::layouts),
    ("softmax_has_the_same_bits_however_its_operand_lies_or_asks_for_a_copy", rows::layouts),
    ("softmax_agrees_with_plain_loops", rows::softmax),
    ("softmax_of_minus_infinities_is_nan_and_its_log_total_minus_infinity", rows::infinities),
    ("norms_agree_with_plain_loops", rows::norms),
    ("copies_move_every_element_of_every_size", indexing::copies),
    ("triangles_keep_one_side", indexing::triangles),
    ("gather_reads_at_each_index", indexing::gather),
    ("embedding_rows_move_in_wide_units", indexing::embedding),
    ("scatter_add_adds_in_order", indexing::scatter_add),
    ("halves_are_joined_in_float", indexing::halves_are_joined_in_float),
    ("a_bad_index_is_reported_and_touches_nothing", indexing::bad_index),
    ("one_hot_marks_each_index", indexing::one_hot),
    ("cumsum_agrees_with_a_plain_loop", indexing::cumsum),
    ("sorts_are_stable_with_nan_last", indexing::sorts),
    ("topk_takes_the_first_of_a_sort", indexing::topk),
    ("attention_and_its_gradients_agree_with_plain_loops", attention::all_results),
    ("attention_over_pages_agrees_with_plain_loops", paged::pages),
    ("rows_by_halves_have_the_same_bits_among_any_others_and_are_near_float64", halves::neighbours),
    ("an_infinite_row_by_halves_stays_alone", halves::without_numbers),
    ("integer_products_wrap_and_float_products_agree", indexing::products),
];

/// SplitMix64 (Steele, Lea, Flood, 2014).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    /// In [-1, 1).
    pub fn float(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

/// A value that lies anyhow in its buffer.
pub struct Strided<T> {
    pub data: Vec<T>,
    pub offset: usize,
    pub shape: Vec<usize>,
    pub strides: Vec<isize>,
}

impl<T: Copy> Strided<T> {
    pub fn contiguous(shape: &[usize], f: impl FnMut(usize) -> T) -> Strided<T> {
        let n = shape.iter().product();
        let strides = crate::shape::contiguous_strides(shape).to_vec();
        Strided { data: (0..n).map(f).collect(), offset: 0, shape: shape.to_vec(), strides }
    }

    /// Permuted, with gaps, walked backwards or repeated, as chance has it.
    pub fn random(
        r: &mut Random,
        shape: &[usize],
        mut f: impl FnMut(&mut Random) -> T,
    ) -> Strided<T> {
        let rank = shape.len();
        let mut order: Vec<usize> = (0..rank).collect();
        if r.below(2) == 0 {
            (1..rank).for_each(|i| order.swap(i, r.below(i + 1)));
        }
        let mut strides = vec![0isize; rank];
        let (mut step, mut offset) = (1, 0);
        for &d in order.iter().rev() {
            if r.below(8) == 0 {
                continue; // repeated
            }
            strides[d] = step as isize;
            let gap = if r.below(6) == 0 { 1 + r.below(3) } else { 1 };
            strides[d] *= gap as isize;
            step *= shape[d] * gap;
            if r.below(6) == 0 && shape[d] > 0 {
                offset += (shape[d] - 1) * strides[d] as usize;
                strides[d] = -strides[d];
            }
        }
        let data = (0..step + 8).map(|_| f(r)).collect();
        Strided { data, offset: offset + r.below(4), shape: shape.to_vec(), strides }
    }

    /// The same elements with the dimensions in another order in memory, each step of the innermost
    /// `gap` wide.
    pub fn laid(&self, order: &[usize], gap: usize, offset: usize) -> Strided<T> {
        let mut strides = vec![0isize; order.len()];
        let mut step = gap;
        for &d in order.iter().rev() {
            strides[d] = step as isize;
            step *= self.shape[d];
        }
        let mut data = vec![self.data[0]; step + offset];
        for index in indices(&self.shape) {
            let off: isize = index.iter().zip(&strides).map(|(&i, &s)| i as isize * s).sum();
            data[offset + off as usize] = self.at(&index);
        }
        Strided { data, offset, shape: self.shape.clone(), strides }
    }

    pub fn at(&self, index: &[usize]) -> T {
        let off: isize = index.iter().zip(&self.strides).map(|(&i, &s)| i as isize * s).sum();
        self.data[(self.offset as isize + off) as usize]
    }

    pub fn buffer(&self) -> Buffer {
        let mut b = Buffer::of(&self.data);
        b.offset = self.offset * size_of::<T>();
        b
    }

    pub fn operand(&self) -> Operand<'_> {
        Operand {
            strides: &self.strides,
            align: 1 << (self.offset * size_of::<T>()).trailing_zeros().min(4),
        }
    }
}

/// Every index of a shape, in row-major order.
pub fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
    let n: usize = shape.iter().product();
    (0..n)
        .map(|i| {
            let mut rest = i;
            let mut index = vec![0; shape.len()];
            for d in (0..shape.len()).rev() {
                index[d] = rest % shape[d];
                rest /= shape[d];
            }
            index
        })
        .collect()
}

/// The linear position of an index.
pub fn linear(shape: &[usize], index: &[usize]) -> usize {
    shape.iter().zip(index).fold(0, |a, (n, i)| a * n + i)
}

/// Asserts that two doubles agree within `tolerance` of the larger of 1 and the expected value.
pub fn close(got: f64, want: f64, tolerance: f64, what: impl std::fmt::Display) {
    let ok = (got.is_nan() && want.is_nan())
        || got == want
        || (got - want).abs() <= tolerance * want.abs().max(1.0);
    assert!(ok, "{what}: {got} is not {want}");
}
