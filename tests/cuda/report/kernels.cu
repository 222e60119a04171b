// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The kernels of a training step, each once, for the report of nvcc: check_report.cmake reads what it says of them.
#include <cstddef>
#include <cstdint>

#include "belay/backend/cuda/attention_fragments.hpp"
#include "belay/backend/cuda/attention_tiles.hpp"
#include "belay/backend/cuda/grouped_tiles.hpp"
#include "belay/backend/cuda/launch.cuh"
#include "belay/backend/cuda/products.cuh"
#include "belay/backend/cuda/reduced_slots.hpp"
#include "belay/backend/cuda/tensor_warp.hpp"
#include "belay/core/dtype.hpp"
#include "belay/kernel.hpp"
#include "belay/parallel/experts/row_kernels.hpp"
#include "belay/parallel/routing.hpp"

namespace belay::inline BELAY_ABI::cuda {

namespace k = kernel;

// The packed form of a kernel alone: of rows whose length is known, so that nothing is left over, and that begin where
// packs do. What a step launches has both forms in one function.
struct packing_warp : warp {
  BELAY_HD void took_packs(bool packs) const { __builtin_assume(packs); }
};
template <class G>
BELAY_HD void make_known(G& g) {
  constexpr std::size_t columns = 1024;
  if constexpr (requires { g.width; }) g.width = columns;
  if constexpr (requires { g.vocabulary; }) g.vocabulary = columns;
  if constexpr (requires { g.of.width; }) g.of.width = columns;
  if constexpr (requires { g.rows.hidden; }) g.rows.hidden = columns, g.rows.k = 2;
  if constexpr (requires { g.head_size; }) g.heads = 6, g.head_size = 128;
  if constexpr (requires { g.ranges; }) g.ranges.count = 1;
  if constexpr (requires { g.found; }) g.found = {};
}
template <class G>
__global__ void run_packed_rows(std::size_t rows, G g) {
  make_known(g);
  std::size_t row = blockIdx.x;
  if constexpr (requires { g.ranges; }) {  // the only chunk of the only range
    if (g.ranges.rows->count != k::sum_chunk) return;
    row = 0;
  }
  if (row < rows) g(packing_warp{threadIdx.x}, row);
}
template <k::packed F>
__global__ void run_whole_packs(std::size_t, F f) {
  f.pack((std::size_t{blockIdx.x} * blockDim.x + threadIdx.x) * F::indices_of_pack);
}

// Kernels with a form for packs.
template __global__ void run_packs(std::size_t, k::adamw<float>);
template __global__ void run_packs(std::size_t, k::adamw_of_master<float, bf16>);
template __global__ void run_packs(std::size_t, k::copy<float, bf16>);
template __global__ void run_packs(std::size_t, k::axpy<float>);
template __global__ void run_packs(std::size_t, reduced_slots<float>);
template __global__ void run_packs(std::size_t, reduced_slots<bf16>);

// Tables of ranges.
template __global__ void run_rows(std::size_t, k::adamw_of_ranges<float, float>);
template __global__ void run_rows(std::size_t, k::adamw_of_ranges<float, bf16>);
template __global__ void run_rows(std::size_t, k::scaled_squares_of_ranges<float>);

// Rows.
using weight_sums = k::column_sums<k::rms_norm_weight_term<float>, float>;
template __global__ void run_rows(std::size_t, k::group_sums<k::rms_norm_weight_term<float>, float>);
template __global__ void run_rows(std::size_t, weight_sums);
template __global__ void run_indices(std::size_t, k::added_groups<float>);
template __global__ void run_rows(std::size_t, k::rms_norm_rows<float, bf16, bf16>);
template __global__ void run_rows(std::size_t, k::rms_norm_rows_backward<float, float, float, float, bf16>);
template __global__ void run_rows(std::size_t, k::accumulate_sorted_rows<float, std::int32_t>);
template __global__ void run_rows(std::size_t, k::accumulate_sorted_rows<bf16, std::int32_t>);
template __global__ void run_indices(std::size_t, k::limited_keys<std::int32_t>);
template __global__ void run_indices(std::size_t, k::rows_by_place);
template __global__ void run_rows(std::size_t, k::rotated_rows<float, bf16>);
template __global__ void run_rows(std::size_t, k::rotate_heads<float>);
template __global__ void run_rows(std::size_t, k::swiglu_rows<bf16, std::size_t>);
template __global__ void run_rows(std::size_t, k::swiglu_rows_again_backward<bf16, std::size_t>);
template __global__ void run_rows(std::size_t, k::cross_entropy_rows<bf16>);
template __global__ void run_long_rows(std::size_t, k::rms_norm_rows<float, bf16, bf16>);
template __global__ void run_long_rows(std::size_t, k::rms_norm_rows_backward<float, float, float, float, bf16>);
template __global__ void run_long_rows(std::size_t, k::cross_entropy_rows<bf16>);
template __global__ void run_long_rows(std::size_t, k::losses_of_rows<k::noted_cross_entropy<float>>);
template __global__ void run_rows(std::size_t, k::losses_of_rows<k::noted_cross_entropy<float>>);
template __global__ void run_rows(std::size_t, k::summed_losses<k::noted_cross_entropy<float>>);
template __global__ void run_rows(std::size_t, k::quantize_rows<mxfp8, bf16>);
template __global__ void run_rows(std::size_t, k::quantize_rows<mxfp8, float>);
template __global__ void run_rows(std::size_t, k::quantize_rows<fp8_block<128>, bf16>);
template __global__ void run_rows(std::size_t, k::dequantize_rows<mxfp8, bf16>);
template __global__ void run_rows(std::size_t, k::dequantize_rows<fp8_block<128>, float>);

// Rows of experts.
template __global__ void run_rows(std::size_t, route_row<float>);
template __global__ void run_rows(std::size_t, route_gradient_row<float, bf16>);
template __global__ void run_rows(std::size_t, pushed_rows<bf16>);
template __global__ void run_rows(std::size_t, pulled_rows<bf16, float>);
template __global__ void run_rows(std::size_t, returned_rows<bf16, float>);

// Fragments.
template __global__ void run_blocks(std::size_t, attention_fragments<tensor_warp, 64>);
template __global__ void run_blocks(std::size_t, attention_fragments<tensor_warp, 128>);
template __global__ void run_blocks(std::size_t, attention_mean_fragments<tensor_warp, 64>);
template __global__ void run_blocks(std::size_t, attention_mean_fragments<tensor_warp, 128>);
template __global__ void run_blocks(std::size_t, attention_key_gradient_fragments<tensor_warp, 64>);
template __global__ void run_blocks(std::size_t, attention_key_gradient_fragments<tensor_warp, 128>);
template __global__ void run_blocks(std::size_t, attention_query_gradient_fragments<tensor_warp, 64>);
template __global__ void run_blocks(std::size_t, attention_query_gradient_fragments<tensor_warp, 128>);

// Tiles.
constexpr tile_access packed = tile_access::packed, single = tile_access::single;
template __global__ void run_blocks(std::size_t, attention_tiles<float, packed>);
template __global__ void run_blocks(std::size_t, attention_key_gradient_tiles<float, packed>);
template __global__ void run_blocks(std::size_t, attention_query_gradient_tiles<float, packed>);
template __global__ void run_blocks(std::size_t, attention_tiles<float, single>);
template __global__ void run_blocks(std::size_t, attention_tiles<bf16, single>);
template __global__ void run_blocks(std::size_t, attention_mean_tiles<bf16, single>);
template __global__ void run_blocks(std::size_t, attention_key_gradient_tiles<bf16, single>);
template __global__ void run_blocks(std::size_t, attention_query_gradient_tiles<bf16, single>);

using k_rows = tensor_tiles<tensor_warp, reading::as_is, reading::transposed, packed>;
using n_rows = tensor_tiles<tensor_warp, reading::as_is, reading::as_is, packed>;
using stacked = tensor_tiles<tensor_warp, reading::transposed, reading::as_is, packed>;
template __global__ void run_blocks(std::size_t, grouped_rows<k_rows, bf16, bf16, bf16, std::size_t>);
template __global__ void run_blocks(std::size_t, grouped_rows<n_rows, bf16, bf16, bf16, std::size_t>);
template __global__ void run_blocks(std::size_t, grouped_stack<stacked, float, bf16, bf16, std::size_t>);

// All that have a form for packs and read or write bf16.
template __global__ void run_whole_packs(std::size_t, k::adamw_of_master<float, bf16>);
template __global__ void run_whole_packs(std::size_t, k::copy<float, bf16>);
template __global__ void run_whole_packs(std::size_t, k::copy<bf16, float>);
template __global__ void run_whole_packs(std::size_t, reduced_slots<bf16>);
template __global__ void run_packed_rows(std::size_t, k::adamw_of_ranges<float, bf16>);
template __global__ void run_packed_rows(std::size_t, k::gather_rows<bf16, std::int32_t, float>);
template __global__ void run_packed_rows(std::size_t, k::accumulate_sorted_rows<bf16, std::int32_t>);
template __global__ void run_packed_rows(std::size_t, k::rms_norm_rows<float, bf16, bf16>);
template __global__ void run_packed_rows(std::size_t, k::rms_norm_rows_again<float, bf16, bf16>);
template __global__ void run_packed_rows(std::size_t, k::rms_norm_rows_backward<float, float, float, float, bf16>);
template __global__ void run_packed_rows(std::size_t, k::rotated_rows<float, bf16>);
template __global__ void run_packed_rows(std::size_t, k::swiglu_rows<bf16, std::size_t>);
template __global__ void run_packed_rows(std::size_t, k::swiglu_rows_again_backward<bf16, std::size_t>);
template __global__ void run_packed_rows(std::size_t, k::cross_entropy_rows<bf16>);
template __global__ void run_packed_rows(std::size_t, pushed_rows<bf16>);
template __global__ void run_packed_rows(std::size_t, pulled_rows<bf16, float>);
template __global__ void run_packed_rows(std::size_t, returned_rows<bf16, float>);

}  // namespace belay::inline BELAY_ABI::cuda
