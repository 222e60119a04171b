// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// When a kit's attention is a library's and when its own, over a device of the host and a library that answers as a
// test says.
#include "belay/backend/cuda/library_attention.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/core/dtype.hpp"
#include "fakes/cuda/fake_api.hpp"

using belay::bf16;
using belay::cuda::attention_extent;
using belay::cuda::attention_pass;
using belay::cuda::attention_problem;
using belay::cuda::result_bits;

namespace {

using plan_answer = belay::cuda::library_answer<int>;

// The device whose own attention is counted, and the answers of its library.
struct attending_device : fakes::device_api {
  using fakes::device_api::device_api;
  int own = 0;
  template <class Call>
  status_type attention(stream_type, const Call&) {
    ++own;
    return {};
  }

  std::function<std::vector<plan_answer>(const attention_problem&)> engines = [](const attention_problem&) {
    return std::vector<plan_answer>{};
  };
  std::string fails;
  std::size_t questions = 0;
  std::vector<int> plans;  // that have run
};

struct given_gradients {
  belay::cuda::narrow_gradient_call call;
  BELAY_HD void operator()(std::size_t i) const {
    call.dqueries.data[i] = call.dcontext.data[i];
    if (i >= call.dkeys.rows * call.dkeys.columns) return;
    call.dkeys.data[i] = bf16(2.0F), call.dvalues.data[i] = bf16(3.0F);
  }
};

// An engine of it computes next to nothing.
class played_library {
 public:
  using plan_type = int;
  played_library(attending_device& of, attending_device::stream_type on) : of_(&of), on_(on) {}

  [[nodiscard]] static std::size_t bound(const attention_problem& of) noexcept { return 4 * of.sequences * of.length; }
  [[nodiscard]] std::string plans(const attention_problem& of, std::size_t, std::span<plan_answer> answers,
                                  std::size_t& count) {
    ++of_->questions;
    const std::vector<plan_answer> all = of_->engines(of);
    count = all.size();
    std::copy(all.begin(), all.end(), answers.begin());
    return of_->fails;
  }
  [[nodiscard]] std::string run(const belay::attention_call<bf16>& call, int plan, std::span<std::byte>) {
    of_->plans.push_back(plan);
    return call.log_sums == nullptr ? "no memory for sums" : "";
  }
  [[nodiscard]] std::string run(const belay::cuda::narrow_gradient_call& call, int plan, std::span<std::byte> room) {
    of_->plans.push_back(plan);
    const std::size_t bytes = static_cast<std::size_t>(room.size());
    if (bytes < 4 * call.queries.rows) return "too little room";
    return attending_device::text(of_->each(on_, call.dqueries.rows * call.dqueries.columns, given_gradients{call}));
  }

 private:
  attending_device* of_;
  attending_device::stream_type on_;
};

using api_type = belay::cuda::attends_by<played_library, attending_device>;
static_assert(belay::cuda::library_attending<api_type> && !belay::cuda::library_attending<attending_device>);

constexpr attention_extent most{{4, 2, 8, 16}, 32};  // two sequences

// A kit over the device, with all of its workspace.
struct attending_kit {
  explicit attending_kit(std::vector<plan_answer> engines, const attention_extent& planned = most)
      : api(planned), gpu(api), kit(gpu), workspace(gpu, kit.workspace_bytes()), memory(gpu, 1 << 16) {
    api.engines = [all = std::move(engines)](const attention_problem&) { return all; };
    kit.use_workspace({workspace.data(), workspace.size_bytes()});
  }
  [[nodiscard]] belay::attention_call<bf16> forward(float* sums = nullptr) const {
    auto* const x = reinterpret_cast<bf16*>(memory.data());
    return {most.sizes, {x, 32, 32, 64}, {x, 32, 16, 64}, {x, 32, 16, 64}, {x, 32, 32, 32}, sums};
  }
  [[nodiscard]] belay::attention_gradient_call<bf16> backward() const {
    auto* const x = reinterpret_cast<bf16*>(memory.data());
    auto* const grad = reinterpret_cast<float*>(memory.data() + 16384);
    return {most.sizes,
            {x, 32, 32, 64},
            {x, 32, 16, 64},
            {x, 32, 16, 64},
            {x, 32, 32, 32},
            grad + 8192,
            {grad, 32, 32, 40},
            {grad + 2048, 32, 32, 72},
            {grad + 2080, 32, 16, 72},
            {grad + 2096, 32, 16, 72}};
  }

  api_type api;
  belay::cuda::device<api_type> gpu;
  belay::cuda::kit<api_type> kit;
  belay::cuda::device_memory<api_type> workspace, memory;
};

plan_answer engine(int number, std::size_t bytes, result_bits bits = result_bits::repeated) {
  return {number, static_cast<std::uint64_t>(number), bytes, bits};
}

}  // namespace

TEST_CASE("memory for attention is planned by a formula of the largest shape, beside that of products") {
  const api_type api(most), none(attention_extent{});
  using kit_type = belay::cuda::kit<api_type>;
  const std::size_t of_others = api.workspace_bytes() + api.scratch_bytes();
  // The gradients in bf16 of 32 rows of 32 and 16 columns, a sum for each row and head, and the library's own.
  const std::size_t formula = 2 * (32 * 32 * 2) + 2 * (32 * 16 * 2) + 32 * 4 * 4 + 4 * 32;
  CHECK(kit_type::workspace_of(api) == of_others + (formula + 255) / 256 * 256);
  CHECK(kit_type::workspace_of(none) == of_others);
  CHECK(belay::cuda::attention_bytes<played_library>({most.sizes, 16}) < api.attention_bytes());
}

TEST_CASE(
    "an attention takes the first engine whose bits are the same each time and that fits, and its forward again") {
  attending_kit on({engine(1, 0, result_bits::varying), engine(2, 4 * 32 + 1), engine(3, 4 * 32), engine(4, 0)});
  float* const sums = reinterpret_cast<float*>(on.memory.data() + 49152);
  on.kit.attention(on.forward(sums));
  on.kit.attention(on.forward());  // of a call whose sums nobody asks for
  on.kit.attention(on.forward(sums));
  CHECK(on.api.plans == std::vector{3, 3, 3});
  CHECK(on.api.questions == 1);
  CHECK(on.api.own == 0);
}

TEST_CASE(
    "an engine that asks for more than the formula, or has other bits each time, leaves attention to the own form") {
  attending_kit on({engine(1, 0, result_bits::varying), engine(2, 4 * 32 + 1)});
  on.kit.attention(on.forward());
  on.kit.attention(on.backward());
  on.kit.attention(on.forward());
  CHECK(on.api.plans.empty());
  CHECK(on.api.own == 3);
  CHECK(on.api.questions == 2);  // once a problem
  // Another rank whose library has an engine is named by the commit.
  attending_kit other({engine(5, 0)});
  other.kit.attention(other.forward());
  const auto all = other.kit.choices().all();
  REQUIRE(all.size() == 1);
  CHECK(all[0].text == "an attention forward of 2 sequences of 16, 4 heads of 8 over 2 of keys");
  REQUIRE(on.kit.choices().find(all[0].problem) != nullptr);
  CHECK(on.kit.choices().find(all[0].problem)->way != all[0].way);
}

TEST_CASE("a shape beyond what was planned, and one without workspace, is attended by the own form") {
  attending_kit small({engine(1, 4 * 32)}, {most.sizes, 16});
  small.kit.attention(small.backward());
  CHECK(small.api.own == 1);
  CHECK(small.api.questions == 0);  // there is no room for its gradients
  attending_kit none({engine(1, 0)}, {});
  none.kit.attention(none.forward());
  CHECK(none.api.own == 1);
}

TEST_CASE("a library that cannot be asked is a backend_error, and no other form") {
  attending_kit on({});
  on.api.fails = "cudnnBackendFinalize: no such thing";
  CHECK_THROWS_WITH_AS(on.kit.attention(on.forward()),
                       doctest::Contains("attention of 1024 bytes: the library of attention: cudnnBackendFinalize"), belay::backend_error);
  CHECK(on.api.own == 0);
}

TEST_CASE("gradients in float are rounded for the library, and its gradients are widened into their rows") {
  attending_kit on({engine(1, 4 * 32)});
  const belay::attention_gradient_call<bf16> call = on.backward();
  const belay::cuda::pinned_memory<api_type> here(on.gpu, 1 << 16);
  auto* const grad = reinterpret_cast<float*>(here.data() + 16384);
  for (std::size_t i = 0; i < 8192; ++i) grad[i] = 1.0F + 0.001F * static_cast<float>(i);
  on.kit.stream().copy(on.memory.data(), here.data(), 1 << 16);
  on.kit.attention(call);
  on.kit.stream().copy(here.data(), on.memory.data(), 1 << 16);
  on.kit.stream().synchronize();
  CHECK(on.api.plans == std::vector{1});
  for (const std::size_t row : {std::size_t{0}, std::size_t{7}, std::size_t{31}}) {
    CHECK(grad[2048 + row * 72 + 5] == static_cast<float>(bf16(1.0F + 0.001F * static_cast<float>(row * 40 + 5))));
    CHECK(grad[2080 + row * 72 + 5] == 2.0F);
    CHECK(grad[2096 + row * 72 + 5] == 3.0F);
    CHECK(grad[2096 + row * 72 + 20] == 1.0F + 0.001F * static_cast<float>(2096 + row * 72 + 20));
  }
}
