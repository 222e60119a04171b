// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What is frozen keeps its bytes and has no gradient, no state and no row of either in the plan; what is trained gets
// the gradients that it would have had.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "laws/support/run.hpp"

using namespace laws;
using belay::stream_policy;
using belay::zero_stage;

namespace {

const uneven_text source(small_run().model.vocab);

bool contains(const std::string& name, std::string_view part) { return name.find(part) != std::string::npos; }
bool of_attention(const std::string& name) { return contains(name, "self_attn"); }
bool of_experts(const std::string& name) { return contains(name, ".experts."); }
bool of_any(const std::string& name) {
  return of_attention(name) || of_experts(name) || contains(name, "embed_tokens");
}

template <class Parts>
record train_parts(const options& run) {
  return train<float, belay::host_kit<>, Parts>(run, source);
}

const options settings[] = {
    [] {
      options run = small_run();
      run.mesh = {.pipeline = 2};
      run.zero = zero_stage::optimizer_state;
      return run;
    }(),
    [] {
      options run = small_run();
      run.mesh = {.data = 2};
      run.zero = zero_stage::gradients;
      run.recompute = recompute_kind::full;
      return run;
    }(),
    [] {
      options run = small_run();
      run.mesh = {.data = 2, .expert = 2};
      run.zero = zero_stage::parameters;
      run.streams = {stream_policy::adversarial, 2};
      return run;
    }(),
    [] {
      options run = small_run();
      run.mesh = {.pipeline = 2, .data = 2};
      run.zero = zero_stage::parameters;
      run.recompute = recompute_kind::selective;
      run.streams = {stream_policy::queued, 0};
      return run;
    }(),
    [] {
      options run = small_run();
      run.mesh = {.pipeline = 2, .data = 3};
      run.zero = zero_stage::parameters;
      run.recompute = recompute_kind::full;
      run.reshard = belay::reshard_when::after_step;
      return run;
    }(),
};

template <class Parts>
void check_freezing(bool (*is_frozen)(const std::string&)) {
  options none = small_run();
  none.steps = 0;
  const record first = train<float>(none, source), all = train<float>(small_run(), source);
  const record one = train_parts<Parts>(small_run());

  const auto keeps_frozen_bytes = [&](const record& got) {
    for (const auto& [name, values] : first.weights) {
      CAPTURE(name);
      CHECK((got.weights.at(name) == values) == is_frozen(name));
    }
  };
  keeps_frozen_bytes(one);
  for (const auto& [name, gradient] : all.gradients[0]) {
    CAPTURE(name);
    REQUIRE(one.gradients[0].contains(name) != is_frozen(name));
    if (!is_frozen(name)) CHECK(one.gradients[0].at(name) == gradient);
  }
  CHECK(one.losses[0] == all.losses[0]);
  CHECK(one.losses[2] != all.losses[2]);

  for (const options& run : settings) {
    INFO(run.mesh.text() << ", zero " << static_cast<int>(run.zero) << ", recompute "
                         << static_cast<int>(run.recompute));
    const record got = train_parts<Parts>(run);
    keeps_frozen_bytes(got);
    for (std::size_t step = 0; step < 2; ++step) {
      const difference found = compare(one.gradients[step], got.gradients[step]);
      INFO(found.where);
      CHECK(found.worst <= 1e-5);
    }
    for (std::size_t step = 0; step < got.losses.size(); ++step)
      CHECK(got.losses[step] == doctest::Approx(one.losses[step]).epsilon(1e-6));
  }
}

// Bytes of a row of the plan of one rank, and the elements of all parameters that are frozen or trained.
struct planned_bytes {
  std::size_t frozen_elements = 0, trained_elements = 0;
  std::size_t parameters = 0, frozen = 0, gradients = 0, optimizer = 0;
};
template <class Parts>
planned_bytes plan_of() {
  planned_bytes out;
  launch(small_run(), [&](auto& rank, auto& self) {
    trainer<float, std::remove_reference_t<decltype(self)>, Parts> trained{small_run(), rank, self, source};
    static_cast<void>(trained.train(1));
    if (self.rehearsing()) return;
    trained.model().for_each_parameter([&]<class Parameter>(Parameter& parameter) {
      (belay::has_gradient<typename Parameter::learning_type> ? out.trained_elements : out.frozen_elements) +=
          parameter.local_size();
    });
    for (const belay::plan_item& item : self.planned().items()) {
      const std::string_view purpose = item.purpose;
      if (purpose == "parameters") out.parameters = item.bytes;
      if (purpose == "frozen parameters") out.frozen = item.bytes;
      if (purpose == "gradients") out.gradients = item.bytes;
      if (purpose == "optimizer state") out.optimizer = item.bytes;
    }
  });
  return out;
}

}  // namespace

TEST_CASE("frozen attention keeps its bytes, and what is trained has the gradients of the whole") {
  check_freezing<model::freezes_attention>(of_attention);
}
TEST_CASE("frozen experts keep their bytes, and what is trained has the gradients of the whole") {
  check_freezing<model::freezes_experts>(of_experts);
}
TEST_CASE("frozen attention, experts and embedding keep their bytes, and norms, routers and head train") {
  check_freezing<model::freezes_parts>(of_any);
}

TEST_CASE("the plan has no gradients and no state of what is frozen") {
  const planned_bytes all = plan_of<model::trains_all>(), some = plan_of<model::freezes_parts>();
  CHECK(all.frozen == 0);
  CHECK(all.frozen_elements == 0);
  CHECK(some.frozen_elements + some.trained_elements == all.trained_elements);
  const auto is_about = [](std::size_t bytes, std::size_t elements) {
    CHECK(bytes >= elements * sizeof(float));
    CHECK(bytes <= elements * sizeof(float) + 4096);  // of alignment
  };
  is_about(some.frozen, some.frozen_elements);
  is_about(some.parameters, some.trained_elements);
  is_about(some.gradients, some.trained_elements);
  is_about(some.optimizer, 2 * some.trained_elements);
}
