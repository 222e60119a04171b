// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// In bf16 the model rounds operands where they are made. So each product of it has two operands of bf16, which a device
// multiplies as they are, where those of two types are converted first. An attention is the kit's own.
#include <doctest/doctest.h>

#include <concepts>
#include <cstddef>
#include <vector>

#include "belay/step.hpp"
#include "belay/step/arithmetic.hpp"
#include "unit/backend/one_layer_model.hpp"

namespace {

// Counts products whose operands are of one type, and of two.
struct counting_kit : belay::host_kit<> {
  using base = belay::host_kit<>;
  std::size_t alike = 0, mixed = 0;

  template <class C, class A, class B>
  requires belay::kernel::product_operands<C, A, B>
  void product(const belay::product_call<C, A, B>& call) {
    note(call.a.data, call.b.data);
    base::product(call);
  }
  template <belay::grouped_call Call>
  void grouped(const Call& call, const belay::kernel::findings_note& found = {}) {
    const auto one = call.of(0, 0, 0);
    note(one.a.data, one.b.data);
    base::grouped(call, found);
  }

 private:
  template <class A, class B>
  void note(const A*, const B*) {
    ++(std::same_as<A, B> ? alike : mixed);
  }
};

// A layer's call of a kit whose products are not counted.
struct bare_frame : belay::frame_arithmetic<bare_frame> {
  explicit bare_frame(counting_kit& computes) : of(&computes) {}
  [[nodiscard]] belay::host_kit<>& kit() const { return *of; }
  [[nodiscard]] static const char* layer() { return "attention"; }
  [[nodiscard]] static std::size_t layer_index() { return 0; }
  belay::host_kit<>* of;
};

template <class T>
void attention_forward(counting_kit& self, const model::attention_forward_call<T>& call) {
  bare_frame frame(self);
  model::causal_attention<T>(call.shape, call.length).forward(frame, call);
}
template <class T>
void attention_backward(counting_kit& self, const model::attention_backward_call<T>& call) {
  bare_frame frame(self);
  model::causal_attention<T>(call.shape, call.length).backward(frame, call);
}

}  // namespace

TEST_CASE_TEMPLATE("the model multiplies operands of one type, and has the same bits whose ever the attention is", T,
                   float, belay::bf16) {
  using one_layer_model::activation_bytes, one_layer_model::parameter_bytes, one_layer_model::one_step;
  const belay::host_pages memory(parameter_bytes), slots(parameter_bytes), staged(parameter_bytes);
  belay::tier_meter meter;
  belay::host_engine host(belay::host_pages(activation_bytes), meter);
  const std::vector<double> expected = one_step<T>(host, memory, slots, staged);
  belay::engine<belay::host_pages, counting_kit> engine(belay::host_pages(activation_bytes), meter);
  CHECK(one_step<T>(engine, memory, slots, staged) == expected);
  // Queries, keys, values, output, gate, experts and head: forward, and two each in the backward.
  CHECK(engine.kit().alike == 3 * 8);
  CHECK(engine.kit().mixed == 0);
}
