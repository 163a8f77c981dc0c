//! Numbers, dimensions and names that mean nothing: what each is taken as, and what its error says.

use super::calls::none;
use futensor::*;

/// A number that `isize` cannot hold is beyond everything; it is not -1.
pub fn usize_max_is_no_dimension_and_no_size(device: &Device) {
    const MAX: usize = usize::MAX;
    let x = device.from_vec(vec![1, 2, 3, 4], [2, 2]);
    let byte = device.zeros_dtype([1], DType::U8);
    let refused = [
        ("reshape", x.reshape([MAX, 2])),
        ("reshape", byte.reshape(MAX)),
        ("expand", byte.expand(MAX)),
        ("expand", byte.expand([MAX, 1])),
        ("expand", device.zeros([0, 1]).expand([0, MAX])),
        ("permute", x.permute([0, MAX])),
        ("squeeze", device.ones([2, 1]).squeeze(MAX)),
        ("sum", x.sum(MAX)),
        ("mean", device.ones([2, 2]).mean_keepdim([0, MAX])),
        ("any", x.any(MAX)),
        ("var", device.ones([2, 2]).var(MAX, 0.0)),
        ("norm", device.ones([2, 2]).norm(2.0, MAX)),
        ("logsumexp", device.ones([2, 2]).logsumexp([0, MAX])),
        ("flip", x.flip(MAX)),
        ("roll", x.roll(MAX, 0)),
        ("roll", x.roll(1, MAX)),
        ("repeat", byte.repeat(MAX)),
        ("pad", x.pad([MAX, 1], 0)),
        ("pad_mode", x.pad_mode([0, MAX], PadMode::Replicate)),
        ("i", x.i(MAX)),
        ("i", x.i((.., MAX))),
        ("narrow", x.narrow(0, MAX, 1)),
        ("topk", x.topk(MAX, 0, true).0),
        ("split_with_sizes", x.split_with_sizes([3, MAX], 0).remove(0)),
        (
            "conv1d",
            device.ones([1, 1, 4]).conv1d(
                device.ones([1, 1, 1]),
                None,
                ConvOptions::default().padding(MAX),
            ),
        ),
        ("max_pool2d", device.ones([1, 4, 4]).max_pool2d(PoolOptions::new(1).stride(MAX))),
        ("zeros", device.zeros([0, MAX])),
    ];
    for (i, (name, value)) in refused.iter().enumerate() {
        let error = value.error().unwrap_or_else(|| panic!("{name}, {i}: {value:?} is no mistake"));
        assert_eq!(error.op(), *name, "{i}: {error}");
    }
    let same =
        |y: TensorFuture| assert_eq!(block_on(y.to_vec::<i32>()).unwrap(), [1, 2, 3, 4], "{y:?}");
    same(x.i(0..MAX));
    same(x.i(..=MAX));
    same(x.clamp_max(MAX));
    same(x.clone().slice_assign(MAX.., device.zeros_dtype((), DType::I32)));
    assert_eq!(x.i(MAX..).dims(), [0, 2]);
    assert_eq!(x.split(MAX, 0).len(), 1);
    assert_eq!(x.repeat([0, 1]).dims(), [0, 2]);
    assert_eq!(device.zeros([0]).repeat(MAX).dims(), [0]);
}

/// Numbers that the integer type cannot hold: PyTorch's clamp of `uint8 [1, 200]` to -5..300 is
/// `[1, 200]`.
pub fn numbers_beyond_an_integer_type_are_taken_as_they_are(device: &Device) {
    let x = device.from_vec(vec![1u8, 200], [2]);
    let y = device.from_vec(vec![i32::MIN, 7], [2]);
    let bytes = |x: TensorFuture| block_on(x.to_vec::<u8>()).unwrap();
    let ints = |x: TensorFuture| block_on(x.to_vec::<i32>()).unwrap();
    let bools = |x: TensorFuture| block_on(x.to_vec::<bool>()).unwrap();
    assert_eq!(bytes(x.clamp(-5, 300)), [1, 200]);
    assert_eq!(bytes(x.clamp_min(-1)), [1, 200]);
    assert_eq!(bytes(x.clamp_min(300)), [255, 255]);
    assert_eq!(bytes(x.clamp_max(300)), [1, 200]);
    assert_eq!(bytes(x.clamp_max(-1)), [0, 0]);
    assert_eq!(bytes(x.clamp(usize::MAX, usize::MAX)), [255, 255]);
    assert_eq!(bytes(x.maximum(256)), [255, 255]);
    assert_eq!(bytes(x.minimum(i64::MIN)), [0, 0]);
    assert_eq!(ints(y.clamp(i64::MIN, i64::MAX)), [i32::MIN, 7]);
    assert_eq!(ints(y.clamp_max(1i64 << 32)), [i32::MIN, 7]);
    assert_eq!(ints(y.clamp_min(-(1i64 << 40))), [i32::MIN, 7]);
    // Within the type nothing changes.
    assert_eq!(bytes(x.clamp(5, 100)), [5, 100]);
    // More elements than an await computes by itself, and in a chain.
    let many = device.arange(0, 1000, 1).to_dtype(DType::U8);
    assert!(bools((many.clamp(-1, 256).eq(&many)).all_all())[0]);
    // Comparisons are of the same kind.
    assert_eq!(bools(x.lt(300)), [true, true]);
    assert_eq!(bools(x.gt(-1)), [true, true]);
    assert_eq!(bools(x.eq(257)), [false, false]);
    assert_eq!(bools(x.ne(456)), [true, true]);
    assert_eq!(bools(y.ge(1i64 << 32)), [false, false]);
    assert_eq!(bools(many.le(256)), [true; 1000]);
}

/// PyTorch takes dimension 0 of a 0-d value (`maybe_wrap_dim` with `wrap_scalar`,
/// `ensure_nonempty_dim`), and `index_select` keeps its shape (`index_select_out_cpu_` of ATen).
pub fn one_number_is_a_row_of_one(device: &Device) {
    let x = device.from_vec(vec![3i32], ());
    let (zero, zeros) = (device.from_vec(vec![0i64], ()), device.zeros_dtype([3], DType::I64));
    let ints = |x: &TensorFuture| {
        (x.dims().to_vec(), block_on(x.to_dtype(DType::I64).to_vec::<i64>()).unwrap())
    };
    for dim in [0, -1] {
        assert_eq!(ints(&x.cumsum(dim)), (vec![], vec![3]));
        assert_eq!(x.cumsum(dim).dtype(), DType::I64);
        for k in [0, 1] {
            let (value, position) = x.topk(k, dim, false);
            assert_eq!((ints(&value), ints(&position)), ((vec![], vec![3]), (vec![], vec![0])));
            assert_eq!(position.dtype(), DType::I64);
        }
        assert_eq!(ints(&x.gather(dim, &zero)), (vec![], vec![3]));
        assert_eq!(ints(&x.gather(dim, &zeros)), (vec![3], vec![3, 3, 3]));
        assert_eq!(ints(&device.arange(4, 7, 1).gather(dim, &zero)), (vec![], vec![4]));
        assert_eq!(ints(&x.scatter_add(dim, &zero, &x)), (vec![], vec![6]));
        let sources = device.from_vec(vec![1, 2, 4], [3]);
        assert_eq!(ints(&x.scatter_add(dim, &zeros, &sources)), (vec![], vec![10]));
        assert_eq!(
            ints(&device.zeros_dtype([2], DType::I32).scatter_add(dim, &zero, &x)),
            (vec![2], vec![3, 0])
        );
        assert_eq!(ints(&x.index_select(dim, &zero)), (vec![], vec![3]));
        assert_eq!(ints(&x.index_select(dim, zeros.narrow(0, 0, 1))), (vec![], vec![3]));
        assert_eq!(ints(&device.arange(4, 7, 1).index_select(dim, &zero)), (vec![1], vec![4]));
        assert_eq!(ints(&x.flip(dim)), (vec![], vec![3]));
    }
    for (name, wrong) in [
        ("cumsum", x.cumsum(1)),
        ("topk", x.topk(2, 0, true).0),
        ("topk", x.topk(1, -2, true).1),
        ("gather", x.gather(1, &zero)),
        ("gather", x.gather(0, zeros.reshape([3, 1]))),
        ("scatter_add", x.scatter_add(1, &zero, &x)),
        ("index_select", x.index_select(0, &zeros)),
        ("index_select", x.index_select(1, &zero)),
    ] {
        let error = wrong.error().unwrap_or_else(|| panic!("{name} of {wrong:?}"));
        assert_eq!(error.op(), name, "{error}");
    }
    let error = block_on(x.gather(0, device.full([2], 1))).unwrap_err();
    assert!(error.is_index() && error.op() == "gather", "{error}");
    // Gradients go the same way back.
    let leaf = device.full((), 2.0).requires_grad();
    let out = leaf.cumsum(0) + leaf.index_select(0, &zero) + leaf.gather(0, &zeros).sum_all();
    let back = grad(out + leaf.topk(1, 0, true).0, &[&leaf]).remove(0);
    assert_eq!(block_on(back.item::<f32>()).unwrap(), 6.0);
}

/// PyTorch's `dim_list_to_bitset`: "dim 0 appears multiple times in the list of dims".
pub fn a_dimension_is_named_once(device: &Device) {
    let (x, one) = (device.ones([1, 2]), device.ones(()));
    let wrong = [
        ("flip", x.flip([0, 0])),
        ("flip", x.flip([1, -1])),
        ("flip", one.flip([0, -1])),
        ("squeeze", x.squeeze([0, -2])),
        ("squeeze", one.squeeze([0, 0])),
        ("sum", x.sum([1, 1])),
        ("sum", one.sum([0, -1])),
        ("var", x.var([0, 0], 0.0)),
        ("norm", x.norm(1.0, [0, 0])),
        ("logsumexp", x.logsumexp([1, 1])),
        ("permute", x.permute([0, -2])),
    ];
    for (name, value) in wrong {
        let error = value.error().unwrap_or_else(|| panic!("{name} took a dimension twice"));
        assert!(
            error.is_argument() && error.op() == name && error.message().contains("twice"),
            "{error}"
        );
    }
}

/// As `dim=()` in PyTorch: everything is reduced (`make_dim_mask`), but by `any` and `all`
/// (`allow_empty_dims` of `allany_meta`), and nothing is squeezed.
pub fn no_dimension_is_all_of_them_for_reductions_alone(device: &Device) {
    let x = device.from_vec(vec![1.0f32, 2.0, 3.0, 6.0], [1, 4]);
    let value = |y: TensorFuture| {
        assert_eq!(y.dims(), [0; 0], "{y:?}");
        block_on(y.item::<f32>()).unwrap()
    };
    assert_eq!(value(x.sum(())), 12.0);
    assert_eq!(value(x.mean([0; 0])), 3.0);
    assert_eq!(value(x.prod(Vec::<i32>::new())), 36.0);
    assert_eq!((value(x.max(())), value(x.min(()))), (6.0, 1.0));
    assert_eq!(value(x.var((), 0.0)), 3.5);
    assert_eq!(value(x.norm(1.0, ())), 12.0);
    assert_eq!(value(device.zeros([2, 2]).logsumexp(())), 4f32.ln());
    assert_eq!(x.sum_keepdim(()).dims(), [1, 1]);
    assert_eq!(x.norm_keepdim(2.0, ()).dims(), [1, 1]);
    assert_eq!(x.logsumexp_keepdim(()).dims(), [1, 1]);
    assert_eq!(block_on(x.sub(2.0).any(()).to_vec::<bool>()).unwrap(), [true, false, true, true]);
    assert_eq!(x.all_keepdim(()).dims(), [1, 4]);
    assert_eq!(x.squeeze(()).dims(), [1, 4]);
    assert_eq!(x.squeeze([0; 0]).dims(), [1, 4]);
    assert_eq!((x.squeeze_all().dims(), device.ones(()).squeeze_all().dims()), (&[4][..], &[][..]));
    assert_eq!(x.flip(()).dims(), [1, 4]);
}

/// The op, and the file and line, that the user wrote.
pub fn errors_name_what_was_called_and_where(device: &Device) {
    let x = device.from_vec(vec![1.0f32, 2.0, 3.0, 4.0], [2, 2]);
    let (flag, other) = (x.gt(0.0), device.ones([3]));
    let bad = device.from_vec(vec![0i64, 7], [2]);
    let huge = usize::MAX / 2;
    assert!(block_on(device.pinned::<f32>(huge)).unwrap_err().is_out_of_memory());
    let pinned = block_on(device.pinned::<f32>(1)).unwrap();
    let start = line!();
    let wrong = [
        ("transpose", x.transpose(0, 5)),
        ("t", device.ones([1, 1, 1]).t()),
        ("permute", x.permute([0, 5])),
        ("reshape", x.reshape(7)),
        ("unsqueeze", x.unsqueeze(9)),
        ("unsqueeze", device.ones([1; 64]).unsqueeze(0)),
        ("squeeze", x.squeeze(9)),
        ("expand", x.expand([3, 3])),
        ("narrow", x.narrow(0, 1, 9)),
        ("i", x.i(5)),
        ("i", x.i((0, 0, 0))),
        ("flip", x.flip(7)),
        ("slice_assign", x.clone().slice_assign(5, &x)),
        ("zeros", device.zeros([huge, 2])),
        ("zeros_dtype", device.zeros_dtype([huge, 2], DType::I64)),
        ("ones", device.ones([huge, 2])),
        ("ones_dtype", device.ones_dtype([huge, 2], DType::I64)),
        ("full", device.full([huge, 2], 1)),
        ("full_dtype", device.full_dtype([huge, 2], 1, DType::I64)),
        ("rand", device.rand([huge, 2])),
        ("randn", device.randn([huge, 2])),
        ("eye", device.eye([huge, 2])),
        ("linspace", device.linspace(0.0, 1.0, huge)),
        ("arange", device.arange(0, i64::MAX, 1)),
        ("from_vec", device.from_vec(vec![1.0f32], [2])),
        ("from_slice", device.from_slice(&[1.0f32], [2])),
        ("from_pinned", device.from_pinned(pinned, [2])),
        ("clamp", x.clamp(0.0, &other)),
        ("clamp_min", x.clamp_min(&other)),
        ("clamp_max", x.clamp_max(&other)),
        ("bitwise_not", x.bitwise_not()),
        ("masked_fill", x.masked_fill(&x, 1)),
        ("where_cond", x.where_cond(1, 2)),
        ("take", x.take(&x)),
        ("index", x.index(&[Some(&x)])),
        ("gather", x.gather(0, &x)),
        ("index_select", x.index_select(0, &x)),
        ("repeat", x.repeat([huge, 4])),
        ("split", x.split(0, 0).remove(0)),
        ("chunk", x.chunk(1, 9).remove(0)),
        ("flatten", x.flatten(0, 9)),
        ("pad", x.pad([huge / 4, 0, huge / 4, 0], 0)),
        ("pad_mode", x.pad_mode([9, 9], PadMode::Circular)),
        ("dropout", x.dropout(2.0)),
        ("mse_loss", x.mse_loss(&other, ())),
        ("cross_entropy", x.cross_entropy(bad.reshape([1, 2]), ())),
        ("nll_loss", x.nll_loss(&x, ())),
        ("bce_with_logits", x.bce_with_logits(&other, ())),
        ("bce_with_logits", x.bce_with_logits(&x, LossOptions::default().weight(&other))),
        ("matmul", x.matmul(&other)),
        ("bmm", x.bmm(&x)),
        ("addmm", x.addmm(&other, &x, 1, 1)),
        ("einsum", einsum("ij,jk->il", &[&x, &x])),
        ("stack", stack(&[&x, &other], 0)),
        ("stack", stack(&[&device.ones([1; 64])], 0)),
        ("cat", cat(&[&x, &other], 0)),
        ("conv1d", x.conv1d(&x, None, ())),
        ("conv2d", x.reshape([1, 1, 2, 2]).conv2d(device.ones([1, 2, 1, 1]), None, ())),
        ("conv_transpose1d", x.conv_transpose1d(&x, None, ())),
        ("avg_pool2d", x.avg_pool2d(2)),
        ("softmax", x.softmax(3)),
        ("layer_norm", x.layer_norm(&other, &other, 0.0)),
        ("batch_norm", x.batch_norm(&other, &other, None, None, 0.0)),
        ("batch_norm_train", x.batch_norm_train(Some(&other), None, 0.0).0),
        ("std", flag.std(0, 1.0)),
        ("std", x.std(5, 1.0)),
        ("norm", x.norm(f64::NAN, 0)),
        ("scaled_dot_product_attention", x.scaled_dot_product_attention(&other, &x, ())),
        ("sort", x.sort(5, true)),
        ("argsort", x.argsort(5, true)),
        ("topk", x.topk(5, 0, true).1),
        ("tril", other.tril(0)),
        ("pow", x.pow(&other)),
        ("add", &x + &other),
    ];
    let end = line!();
    let mut misnamed = String::new();
    for (name, value) in &wrong {
        match value.error() {
            None => misnamed += &format!("{name}: {value:?} is no mistake\n"),
            Some(error) => {
                let at = error.location();
                let here = at.file() == file!() && (start..end).contains(&at.line());
                if error.op() != *name || !here {
                    misnamed += &format!("{name}: {error}\n");
                }
            }
        }
    }
    assert!(misnamed.is_empty(), "{misnamed}");
    assert_eq!(x.i(5).error().unwrap().message(), "index 5 is not in a dimension of 2");
    let part = x.clone().slice_assign((1, 2..=3, 0), &x);
    assert_eq!(part.error().unwrap().message(), "3 indices for shape [2, 2]");

    // What is only known when it runs: on the CPU a loss is one op, on a GPU several.
    let weighted = || LossOptions::default().weight(device.ones([2]));
    // Of no elements, which are picked for nothing.
    let empty = device.ones([2, 0]);
    let rows = bad.unsqueeze(1).expand([2, 2]);
    let means = op_options::ScatterOptions::mean;
    let alone = op_options::ScatterOptions::from(ScatterMode::Prod).include_self(false);
    let (labels, labels_of) = (bad.reshape([2, 1]), device.ones_dtype([2], DType::I64));
    let start = line!();
    let wrong = [
        ("cross_entropy", x.cross_entropy(&bad, ())),
        ("cross_entropy", x.cross_entropy(&bad, Reduction::None)),
        ("cross_entropy", x.cross_entropy(&bad, weighted())),
        ("nll_loss", x.nll_loss(&bad, ())),
        ("nll_loss", x.nll_loss(&bad, weighted())),
        ("take", x.take(&bad)),
        ("index", x.index(&[Some(&bad)])),
        ("index_select", x.index_select(0, &bad)),
        ("gather", x.gather(0, bad.reshape([1, 2]))),
        ("embedding", x.embedding(&bad)),
        ("index_select", empty.index_select(0, &bad)),
        ("embedding", empty.embedding(&bad)),
        ("index_copy", empty.clone().index_copy(0, &bad, &empty)),
        ("index_copy", x.clone().index_copy(0, &bad, &x)),
        ("index_add", x.index_add(0, &bad, &x, 1)),
        ("index_add", x.index_add(0, &bad, &x, 0.5)),
        ("index_fill", x.clone().index_fill(0, &bad, 1)),
        ("index_put", x.index_put(&[Some(&bad)], &x, false)),
        ("index_put", x.index_put(&[Some(&bad)], &x, true)),
        ("scatter", x.scatter(0, &rows, &x)),
        ("scatter_add", x.scatter_add(0, &rows, &x)),
        ("scatter_reduce", x.scatter_reduce(0, &rows, &x, ScatterMode::Assign)),
        ("scatter_reduce", x.scatter_reduce(0, &rows, &x, ScatterMode::Sum)),
        ("scatter_reduce", x.scatter_reduce(0, &rows, &x, ScatterMode::Max)),
        ("scatter_reduce", x.scatter_reduce(0, &rows, &x, means())),
        ("scatter_reduce", x.scatter_reduce(0, &rows, &x, means().include_self(false))),
        ("scatter_reduce", x.scatter_reduce(0, &rows, &x, alone)),
        ("one_hot", bad.one_hot(2)),
        ("ctc_loss", x.reshape([1, 2, 2]).ctc_loss(&labels, &bad, &labels_of, 0, false, ())),
    ];
    let end = line!();
    for (name, value) in wrong {
        let error = block_on(value.wait_to_read()).unwrap_err();
        assert!(error.is_index() && error.op() == name, "{name}: {error}");
        assert!((start..end).contains(&error.location().line()), "{error}");
        assert!(error.message().contains("index 7 "), "{error}");
    }

    // A device that is not there.
    let line = line!() + 1;
    let error = Device::cuda(1000).unwrap_err();
    assert!(error.to_string().contains(&format!("{}:{line}", file!())), "{error}");
    // A batch that is made on a thread of its own.
    let loader = data::Loader::<()>::new(2, |_, _| panic!("no such file"));
    let line = line!() + 1;
    let error = block_on(loader.epoch(0, device).next()).unwrap().unwrap_err();
    assert!(error.to_string().contains(&format!("{}:{line}", file!())), "{error}");
}

pub fn the_norm_of_no_gradients_is_nothing(_: &Device) {
    let (clipped, norm) = optim::clip_grad_norm(&[], 1.0);
    assert!(clipped.is_empty());
    assert_eq!(block_on(norm.item::<f32>()).unwrap(), 0.0);
}

pub fn functions_of_no_tensors_fail_and_say_what_they_need(_: &Device) {
    for (name, value) in [
        ("cat", cat(&none(), 0)),
        ("stack", stack(&none(), 0)),
        ("einsum", einsum("ij->ij", &none())),
    ] {
        let error = value.error().expect("it failed at once");
        assert!(error.is_argument() && error.op() == name, "{error}");
        assert_eq!(error.message(), "needs at least one tensor");
    }
}

pub fn parts_of_no_size_or_of_no_dimension_are_one_failed_value(device: &Device) {
    let x = device.ones([4, 2]);
    for (name, parts) in [
        ("split", x.split(0, 0)),
        ("split", x.split(1, 2)),
        ("chunk", x.chunk(0, 0)),
        ("chunk", x.chunk(2, -3)),
    ] {
        assert_eq!(parts.len(), 1, "{name}");
        let error = parts[0].error().expect("it failed at once");
        assert_eq!(error.op(), name, "{error}");
    }
}

pub fn a_repeated_value_is_one_copy_and_its_mistakes_name_repeat(device: &Device) {
    let x = device.from_vec(vec![1, 2, 3, 4], [2, 2]);
    let y = block_on(x.repeat([2, 1, 2]).to_vec::<i32>()).unwrap();
    assert_eq!(y, [1, 2, 1, 2, 3, 4, 3, 4, 1, 2, 1, 2, 3, 4, 3, 4]);
    assert_eq!(x.repeat([0, 2]).dims(), [0, 4]);
    for wrong in [x.repeat(2), x.repeat([-1, 1]), x.repeat([usize::MAX / 2, 2])] {
        assert_eq!(wrong.error().unwrap().op(), "repeat", "{:?}", wrong.error());
    }
}
