// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Which form the kernels of a training step take on a device: by packs of 16 bytes where rows are multiples of them, as
// those of models are.
#include "fakes/cuda/kernel_forms.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/host.hpp"
#include "belay/core/dtype.hpp"
#include "unit/backend/one_layer_model.hpp"
#include "unit/train/support/experts_trainer.hpp"

using namespace experts_trainer;
using fakes::kernel_form;

namespace {

// A sixteenth of bench/beside_torch.py's 1b in each width, which have the same factors of two.
settings like_1b() {
  settings out;
  out.model.vocab = 512;
  out.model.hidden = 64;
  out.model.expert_width = 224;
  out.model.heads = 2;
  out.model.kv_heads = 1;
  out.model.head_dim = 32;
  return out;
}

// Rows that begin anywhere.
settings of_odd_widths() {
  settings out;
  out.model.hidden = 17;
  out.model.expert_width = 25;
  out.model.heads = 3;
  out.model.kv_heads = 1;
  out.model.head_dim = 6;
  return out;
}

// The losses are the host's, up to the order of a product's sums.
template <class T>
void train(fakes::form_counting_api& api, const settings& how) {
  result got;
  belay::launch(belay::cuda::world(api, belay::host::world(1), {.slot_bytes = 1 << 12}), body<T>(got, how));
  const result expected = on_host<T>(1, how);
  REQUIRE(got.losses.size() == steps);
  for (std::size_t i = 0; i < steps; ++i) CHECK(got.losses[i] == doctest::Approx(expected.losses[i]).epsilon(5e-3));
  CHECK(api.empty());
}

std::string listed(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& each : names) out += each + '\n';
  return out;
}

}  // namespace

TEST_CASE("the kernels of steps in bf16 move their rows by 16 bytes: none takes its general form") {
  fakes::form_counting_api api;
  train<belay::bf16>(api, like_1b());
  CHECK(listed(api.forms().of(kernel_form::general)) == "");
  const std::string packed = listed(api.forms().of(kernel_form::packed));
  for (const char* each :
       {"adamw_of_ranges<", "attention_fragments<", "attention_key_gradient_fragments<", "column_sums<", "gather_rows<",
        "grouped_rows<", "grouped_stack<", "noted_cross_entropy<", "pulled_rows<", "pushed_rows<", "returned_rows<",
        "rms_norm_rows<", "rms_norm_rows_backward<", "rotated_rows<", "scaled_squares_of_ranges<", "swiglu_rows<"}) {
    CAPTURE(each);
    CHECK(packed.find(each) != std::string::npos);
  }
}

TEST_CASE("a layer of 1b in bf16 asks for 45 kernels and library calls at most, and none in its general form") {
  using api_type = fakes::form_counting_api;
  one_layer_model::subject of{.sequences = 4, .bytes = std::size_t{1} << 30};
  of.has = one_layer_model::subject::values::absent;
  of.config.vocab = 256;
  of.config.hidden = 1024;
  of.config.expert_width = 3584;
  of.config.heads = 16;
  of.config.kv_heads = 4;
  of.config.head_dim = 64;
  of.config.experts = 8;
  of.config.positions = 1024;
  api_type api;
  api.begins_only();
  const belay::cuda::device<api_type> gpu(api);
  const belay::cuda::device_memory<api_type> values(gpu, of.bytes), slots(gpu, of.bytes / 4);
  const belay::cuda::pinned_memory<api_type> staged(gpu, 1 << 20);
  belay::tier_meter meter;
  belay::engine<belay::cuda::device_memory<api_type>, belay::cuda::kit<api_type>> engine(
      belay::cuda::device_memory<api_type>(gpu, 4 * of.bytes), meter, belay::cuda::kit<api_type>(gpu),
      belay::freed_memory::as_it_was);
  const belay::cuda::device_memory<api_type> workspace(gpu, engine.kit().workspace_bytes());
  engine.kit().use_workspace({workspace.data(), workspace.size_bytes()});
  one_layer_model::counted_calls<api_type> calls(api);
  engine.watch().tell_calls(calls);
  static_cast<void>(one_layer_model::one_step<belay::bf16>(engine, values, slots, staged, of));
  CHECK(calls.launches + calls.library_calls <= 45);
  CHECK(calls.launches == 33);  // the own attention has three kernels in the backward, where a library has one call
  CHECK(calls.library_calls == 11);
  CHECK(listed(api.forms().of(kernel_form::general)) == "");
  CHECK(listed(api.forms().of(kernel_form::packed)).find("attention_fragments<") != std::string::npos);
}

TEST_CASE("attention in fp32 moves its rows by 16 bytes where they are multiples of them") {
  fakes::form_counting_api packed, general;
  train<float>(packed, like_1b());
  train<float>(general, of_odd_widths());
  for (const char* each : {"attention_tiles<", "attention_key_gradient_tiles<", "attention_query_gradient_tiles<"}) {
    CAPTURE(each);
    CHECK(listed(packed.forms().of(kernel_form::packed)).find(each) != std::string::npos);
    CHECK(listed(packed.forms().of(kernel_form::general)).find(each) == std::string::npos);
    CHECK(listed(general.forms().of(kernel_form::general)).find(each) != std::string::npos);
  }
}

TEST_CASE("rows of odd widths are moved by the general forms of kernels, which are counted") {
  fakes::form_counting_api api;
  train<belay::bf16>(api, of_odd_widths());
  const std::string general = listed(api.forms().of(kernel_form::general));
  for (const char* each :
       {"attention_tiles<", "attention_key_gradient_tiles<", "column_sums<", "gather_rows<", "grouped_rows<",
        "grouped_stack<", "noted_cross_entropy<", "pulled_rows<", "pushed_rows<", "returned_rows<", "rms_norm_rows<",
        "rms_norm_rows_backward<", "rotated_rows<", "swiglu_rows<"}) {
    CAPTURE(each);
    CHECK(general.find(each) != std::string::npos);
  }
}
