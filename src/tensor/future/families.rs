//! The table of methods by family on the page of `TensorFuture`, where rustdoc lists methods in the
//! order of the sources. `op_table` compares it with the book's table of ops and with the sources.

/// A table with links: `"family": method ..., function ...;` is a row. Forms such as `_keepdim`
/// have no entry.
macro_rules! families {
    () => {
        families! {
            "awaiting": wait_to_read detach is_ready error;
            "known at once": shape dims rank numel dtype device;
            "reading": to_vec to_pinned item display nonzero;
            "like another": zeros_like ones_like full_like rand_like randn_like;
            "one operand": neg abs sign square sqrt rsqrt recip exp exp2 expm1 log log2 log10 log1p
                sin cos tan asin acos atan sinh cosh asinh acosh atanh erf erfinv lgamma digamma
                floor ceil round trunc isnan isinf isfinite logical_not bitwise_not;
            "two operands": add sub mul div pow maximum minimum atan2 hypot xlogy logaddexp fmod
                remainder floor_divide trunc_divide eq ne lt le gt ge logical_and logical_or
                logical_xor bitwise_and bitwise_or bitwise_xor where_cond masked_fill clamp
                clamp_min clamp_max lerp nan_to_num isclose allclose round_decimals;
            "activations": relu leaky_relu elu selu prelu mish hardswish glu gelu gelu_tanh silu
                sigmoid tanh softplus softplus_with softmax log_softmax dropout dropout_with;
            "reductions": sum prod mean max min max_initial min_initial any all argmax argmin var
                std norm logsumexp;
            "order": cumsum cumsum_with cumprod cumprod_with cummax cummin sort argsort
                sort_with_positions max_with_positions min_with_positions topk kthvalue median
                quantile;
            "shapes and views": reshape flatten transpose t permute unsqueeze squeeze expand repeat
                narrow i split split_with_sizes chunk pad pad_mode slice_assign tril triu roll flip
                movedim unflatten unfold_dim unbind tile repeat_interleave diagonal diag trace, cat
                stack meshgrid;
            "indexing": gather scatter scatter_add scatter_reduce index_add index_fill index_put
                index_copy index_select index take embedding one_hot searchsorted histc
                masked_select index_mask unique bincount repeat_interleave_by top_p categorical;
            "products": matmul linear mm bmm addmm baddbmm addmv dot outer inner cosine_similarity
                cdist, einsum;
            "attention": scaled_dot_product_attention paged_attention rope;
            "convolution, pooling": conv1d conv2d conv3d conv_transpose1d conv_transpose2d
                conv_transpose3d max_pool1d max_pool2d max_pool3d max_pool1d_with_positions
                max_pool2d_with_positions max_pool3d_with_positions avg_pool1d avg_pool2d avg_pool3d
                adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d
                adaptive_max_pool2d adaptive_max_pool3d interpolate unfold fold pixel_shuffle
                pixel_unshuffle grid_sample;
            "normalisation": layer_norm layer_norm_weighted layer_norm_plain rms_norm rms_norm_plain
                batch_norm batch_norm_train group_norm instance_norm;
            "losses": mse_loss cross_entropy nll_loss bce_with_logits l1_loss smooth_l1_loss
                huber_loss kl_div binary_cross_entropy cosine_embedding_loss ctc_loss;
            "types, devices": to_dtype to_device;
            "gradients": requires_grad stop_gradient is_on_tape;
        }
    };
    ($($family:literal: $($method:ident)* $(, $($function:ident)*)?;)*) => {
        concat!(
            "| family | methods |\n|---|---|\n",
            $(
                "| ", $family, " |",
                $(" [`", stringify!($method), "`](Self::", stringify!($method), ")",)*
                $($(" [`", stringify!($function), "`](crate::", stringify!($function), ")",)*)?
                " |\n",
            )*
        )
    };
}
pub(crate) use families;
