//! Nonsense for arguments: every op on every kind of value, with sizes, dimensions and indices that
//! nobody means. Each call gives values that come, or that fail with a clear error: none panics,
//! none hangs.
//!
//! One list of promises, more devices: the CPU here, simulated CUDA in `nonsense_simulated_cuda`.

#![allow(clippy::reversed_empty_ranges)]

#[path = "nonsense/arguments.rs"]
mod arguments;
#[path = "nonsense/calls/mod.rs"]
mod calls;
#[path = "nonsense/everything.rs"]
mod everything;
#[path = "nonsense/sizes.rs"]
mod sizes;
#[path = "nonsense/storage.rs"]
mod storage;

use futensor::*;
use libtest_mimic::{Arguments, Failed, Trial};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

macro_rules! promises {
    ($($module:ident: $($name:ident)*;)*) => {
        &[$($((stringify!($name), $module::$name)),*),*]
    };
}

/// Every promise, of a device with 64 MiB.
const ALL: &[(&str, fn(&Device))] = promises! {
    everything:
        nonsense_gives_values_or_errors_and_never_panics_or_hangs
        no_op_is_without_nonsense
        an_error_that_is_told_strangely_is_seen
        values_larger_than_memory_are_refused_or_never_written;
    arguments:
        usize_max_is_no_dimension_and_no_size
        numbers_beyond_an_integer_type_are_taken_as_they_are
        one_number_is_a_row_of_one
        a_dimension_is_named_once
        no_dimension_is_all_of_them_for_reductions_alone
        errors_name_what_was_called_and_where
        the_norm_of_no_gradients_is_nothing
        functions_of_no_tensors_fail_and_say_what_they_need
        parts_of_no_size_or_of_no_dimension_are_one_failed_value
        a_repeated_value_is_one_copy_and_its_mistakes_name_repeat;
    storage:
        every_row_refuses_a_type_for_storage
        a_type_for_storage_is_moved_as_numbers_are_or_refused
        a_region_moves_and_converts_types_for_storage
        gradients_go_through_float8_and_are_not_added_up_in_it
        a_parameter_of_float8_is_converted_with_its_model;
    sizes:
        sizes_beside_a_size_of_0_overflow_nothing
        a_value_without_elements_is_shown_whatever_its_sizes
        ranges_that_are_longer_than_any_memory_are_refused
        a_draw_that_fails_at_the_call_uses_no_numbers_up
        a_range_that_leads_away_is_refused_whatever_its_size
        an_einsum_that_fails_on_its_way_is_one_failed_value
        a_roll_has_a_gradient_whatever_its_shift
        more_parts_than_memory_has_room_for_are_one_failed_value
        the_places_of_more_elements_than_memory_has_room_for_fail
        of_a_value_of_many_dimensions_the_first_elements_are_shown
        pages_of_any_size_give_values_and_gradients
        a_weight_without_rows_or_columns_has_any_other_size
        sizes_of_failed_values_overflow_nothing
        a_pool_looks_at_no_place_one_by_one_when_it_is_asked_for
        a_convolution_of_no_images_has_a_gradient_whatever_their_size
        rows_without_columns_are_quantised_at_once
        attention_of_no_width_finds_the_mean_of_the_values
        options_without_end_are_no_limits;
};

/// Runs all of them, each on a device of its own.
pub fn run(kind: &str, alone: bool, ignored: bool, make: fn() -> Device) -> ExitCode {
    let mut arguments = Arguments::from_args();
    if alone {
        arguments.test_threads = Some(1);
    }
    let trials = ALL.iter().map(|&(name, promise)| {
        let trial = move || {
            let kept = catch_unwind(AssertUnwindSafe(|| promise(&make())));
            kept.map_err(|panic| {
                let text = panic.downcast_ref::<String>().cloned();
                Failed::from(
                    text.or_else(|| panic.downcast_ref::<&str>().map(|t| t.to_string()))
                        .unwrap_or_default(),
                )
            })
        };
        Trial::test(format!("{name}[{kind}]"), trial).with_ignored_flag(ignored)
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

fn main() -> ExitCode {
    run("cpu", false, false, || {
        Device::cpu_with(CpuOptions::default().bytes_max(1 << 26).threads(2))
    })
}
