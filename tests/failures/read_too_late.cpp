// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A pointer that outlives what lent it, as a foreign autograd's saved tensors do: it reads what others have written
// since, the loss still falls, and the gradients are others each run. What was given back holds numbers that are none,
// whatever the policy of the streams, and the refused step names whose memory it was. See
// docs/explanation/steps_and_stores.md.
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/belay.hpp"
#include "failures/support/late_readers.hpp"

extern "C" int __asan_address_is_poisoned(const volatile void* address);

namespace {

using namespace late_readers;
using belay::stream_policy;

std::string what_of(auto&& body) {
  try {
    body();
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

// What ends a run of two ranks that divide parameters.
// A function of its own (docs/howto/check_backwards.md, an error that comes and goes).
template <class Layer>
void pass(const auto& scope, std::vector<Layer>& layers, matrix in, matrix wanted) {
  belay::handle_store<decltype(belay::forward(scope, layers[0], in))> handles{depth};
  handles.keep(0, belay::forward(scope, layers[0], in));
  for (std::size_t i = 1; i < depth; ++i) handles.keep(i, belay::forward(scope, layers[i], handles.at(i - 1).out()));
  auto [loss, grad] = belay::squared_error(scope, handles.at(depth - 1).out(), wanted);
  for (std::size_t i = depth; i-- > 0;) grad = handles.take(i).backward(grad);
}

std::string trained(reads how, stream_policy policy) {
  belay::launch_options options;
  options.streams = {policy};
  const auto train = [how](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = 2}};
    network net(how);
    belay::parameter_store store{run, mesh, net, belay::zero<3>{}};
    std::vector<belay::gathers<linear, decltype(store)>> whole;
    for (auto& l : net.all) whole.emplace_back(l, store);
    belay::adamw optimizer{store};
    std::vector<float> x(batch * width, 0.5F), t(batch * width, 0.25F);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = float(std::sin(double(i)));
    const matrix in{x.data(), {batch, width}}, wanted{t.data(), {batch, width}};
    for ([[maybe_unused]] const auto number : run.steps(2)) {
      belay::step step{run.engine(), store};
      pass(step.micro_batch(0), whole, in, wanted);
      auto outcome = std::move(step).commit(mesh, belay::samples{batch * 2});
      if (auto* ok = belay::committed(outcome)) optimizer.apply(std::move(*ok), {.learning_rate = 1e-3});
    }
  };
  return what_of([&] { belay::launch(belay::host::world{2}, train, options); });
}

struct opened {
  belay::tier_meter meter;
  belay::host_engine engine;
  std::vector<float> values = std::vector<float>(64, 1.0F);
  opened(stream_policy policy, belay::freed_memory left)
      : engine(belay::host_pages{1 << 16}, meter, belay::host_kit<>{belay::stream_settings{policy, {}, {}}}, left) {}
  [[nodiscard]] matrix x() const { return {values.data(), {8, 8}}; }
};

}  // namespace

TEST_CASE("a weight that the forward read is refused in the backward, with the parameter and the layer") {
  if constexpr (!belay::checked(belay::check_level::local)) return;
  for (const stream_policy policy : {stream_policy::immediate, stream_policy::queued, stream_policy::adversarial}) {
    CAPTURE(belay::name(policy));
    CHECK(trained(reads::anew, policy) == "");
    if (belay::address_sanitizer && policy == stream_policy::immediate) continue;  // which ends the program
    const std::string why = trained(reads::what_the_forward_read, policy);
    CHECK_MESSAGE(why.find("gradients are not finite") != std::string::npos, why);
    CHECK_MESSAGE(
        why.find("memory was read that had been given back; who had it last: parameter w") != std::string::npos, why);
    CHECK_MESSAGE(why.find("gathered for a call of layer 0 'linear' that was over") != std::string::npos, why);
  }
}

TEST_CASE("scratch, a dropped output and a first pass leave numbers that are none, and say whose they were") {
  if constexpr (!belay::checked(belay::check_level::local)) return;
  for (const stream_policy policy : {stream_policy::immediate, stream_policy::queued}) {
    CAPTURE(belay::name(policy));
    const bool closed = belay::address_sanitizer && policy == stream_policy::immediate;
    opened s(policy, belay::freed_by_default);
    forgets layer;
    belay::recompute again{layer};
    belay::step step{s.engine};
    const auto expect = [&](const float* stale, const char* whose) {
      s.engine.synchronize();
      if constexpr (belay::address_sanitizer) {
        if (closed) {
          CHECK(__asan_address_is_poisoned(stale));
          return;
        }
      }
      CHECK(std::isnan(stale[5]));
      const std::string text = s.engine.given_back(static_cast<double>(stale[5]) * 2 - 1);
      CHECK_MESSAGE(text.find(whose) != std::string::npos, text);
    };
    {
      const auto seen = belay::observe(step, layer, s.x());
      expect(layer.scratch, "who had it last: scratch of layer 0 'forgets' (micro-batch 0)");
      if (!closed) {
        CHECK(s.engine.given_back(std::int64_t{*layer.index}).find("scratch of layer 0 'forgets'") !=
              std::string::npos);
        CHECK(s.engine.given_back(static_cast<double>(static_cast<float>(layer.narrow[1]))).find("'forgets'") !=
              std::string::npos);
      }
      CHECK(seen.out()(7, 7) == 1);
    }
    expect(layer.kept, "who had it last: what layer 0 'forgets' had kept");
    auto lean = belay::forward(step, again, s.x());
    expect(layer.kept, "who had it last: what layer 0 'forgets' had kept");
    CHECK(lean.out()(7, 7) == 1);
    std::move(lean).discard("seen");
    auto outcome = std::move(step).commit();
    CHECK(belay::committed(outcome) != nullptr);
  }
}

TEST_CASE("without it they are what they were, or what others write there") {
  opened s(stream_policy::immediate, belay::freed_memory::as_it_was);
  forgets layer;
  belay::step step{s.engine};
  static_cast<void>(belay::observe(step, layer, s.x()));
  CHECK(layer.kept[5] == 1);
  CHECK(layer.scratch[5] == 1);
  static_cast<void>(std::move(step).commit());
}

namespace {

enum class lets_go : std::uint8_t { never, before_a_plain_layer };

std::string offloaded(lets_go what, stream_policy policy) {
  belay::launch_options options;
  options.streams = {policy};
  const auto train = [what](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = 1}};
    four net;
    belay::parameter_store store{run, mesh, net, belay::zero<0>{}};
    belay::offloaded_activations activations{run, belay::tier::host};
    belay::offloads first{net.a, activations}, third{net.c, activations}, last{net.d, activations};
    belay::adamw optimizer{store};
    std::vector<float> x(batch * width, 0.5F);
    const matrix in{x.data(), {batch, width}};
    for ([[maybe_unused]] const auto number : run.steps(2)) {
      belay::step step{run.engine(), store};
      auto a = belay::forward(step, first, in);
      auto b = belay::forward(step, net.b, a.out());  // keeps a.out()
      if (what == lets_go::before_a_plain_layer) a.let_go();
      auto c = belay::forward(step, third, b.out());
      auto d = belay::forward(step, last, c.out());
      auto [loss, grad] = belay::squared_error(step, d.out(), matrix{x.data(), {batch / 4, width}});
      grad = std::move(d).backward(grad);
      grad = std::move(c).backward(grad);
      grad = std::move(b).backward(grad);
      std::move(a).backward(grad);
      auto outcome = std::move(step).commit(mesh, belay::samples{batch});
      if (auto* ok = belay::committed(outcome)) optimizer.apply(std::move(*ok), {.learning_rate = 1e-3});
    }
  };
  return what_of([&] { belay::launch(belay::host::world{1}, train, options); });
}

}  // namespace

TEST_CASE("an output that was let go of before a plain layer that keeps it is named") {
  if constexpr (!belay::checked(belay::check_level::local)) return;
  for (const stream_policy policy : {stream_policy::immediate, stream_policy::queued, stream_policy::adversarial}) {
    CAPTURE(belay::name(policy));
    CHECK(offloaded(lets_go::never, policy) == "");
    if (belay::address_sanitizer && policy == stream_policy::immediate) continue;
    const std::string why = offloaded(lets_go::before_a_plain_layer, policy);
    CHECK_MESSAGE(why.find("parameter b") != std::string::npos, why);
    CHECK_MESSAGE(why.find("memory was read that had been given back") != std::string::npos, why);
  }
}

namespace {

// y = w * x, a weight a column; `out` is in memory of its own, of its call's scratch, or a part of what it has kept.
enum class output_is : std::uint8_t { owned, scratch, inside_what_is_kept };
struct scaled {
  belay::parameter<float> weight;
  output_is where_it_is;
  scaled(const std::string& called, output_is place)
      : weight({called, {width}, belay::initial::constant(1)}), where_it_is(place) {}
  [[nodiscard]] static const char* name() { return "scaled"; }
  void for_each_parameter(auto&& visit) { visit(weight); }
  struct residue {
    belay::view<float, 2> out;
    matrix x;
    std::shared_ptr<std::vector<float>> own;
  };
  residue forward(auto& frame, matrix x) {
    residue r{{}, x, {}};
    if (where_it_is == output_is::owned) {
      r.own = std::make_shared<std::vector<float>>(x.size());
      r.out = {r.own->data(), x.shape()};
    } else if (where_it_is == output_is::scratch) {
      r.out = belay::scratch<float>(frame, x.shape());
    } else {
      r.out = {belay::keep<float>(frame, {x.size() + 32}).data() + 32, x.shape()};
    }
    const float* const w = frame.read(weight).data();
    frame.run([=, y = r.out] {
      for (std::size_t i = 0; i < x.size(); ++i) y.data()[i] = x.data()[i] * w[i % width];
    });
    return r;
  }
  void backward(auto& frame, residue&& r, matrix dy, belay::view<float, 2> dx) {
    const float* const w = frame.read(weight).data();
    float* const dw = frame.add_to(weight).data();
    frame.run([=, x = r.x] {
      for (std::size_t i = 0; i < x.size(); ++i)
        dw[i % width] += x.data()[i] * dy.data()[i], dx.data()[i] = w[i % width] * dy.data()[i];
    });
  }
};
struct two {
  scaled first, second;
  explicit two(output_is place) : first("first", place), second("second", place) {}
  void for_each_parameter(auto&& visit) { visit(first.weight), visit(second.weight); }
};
struct run_of {
  double loss = 0;
  std::string ended;
};
template <bool Again>
run_of scaled_run(output_is place) {
  run_of out;
  out.ended = what_of([&] {
    belay::launch(belay::host::world{1}, [&](auto& rank, auto& run) {
      belay::mesh mesh{rank, {.data = 1}};
      two net(place);
      belay::parameter_store store{run, mesh, net, belay::zero<0>{}};
      belay::recompute again{net.first};
      belay::adamw optimizer{store};
      std::vector<float> x(batch * width), t(batch * width, 0.5F);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = float(std::sin(double(i)));
      for ([[maybe_unused]] const auto number : run.steps(3)) {
        belay::step step{run.engine(), store};
        auto& first = [&]() -> auto& {
          if constexpr (Again)
            return again;
          else
            return net.first;
        }();
        auto h = belay::forward(step, first, belay::constant(matrix{x.data(), {batch, width}}));
        auto y = belay::forward(step, net.second, h.out());
        auto [loss, grad] = belay::squared_error(step, y.out(), matrix{t.data(), {batch, width}});
        grad = std::move(y).backward(grad);
        std::move(h).backward(grad);
        auto outcome = std::move(step).commit(mesh, belay::samples{batch});
        if (auto* ok = belay::committed(outcome)) {
          out.loss = ok->summary().loss;
          optimizer.apply(std::move(*ok), {.learning_rate = 1e-2});
        }
      }
    });
  });
  return out;
}

}  // namespace

TEST_CASE("an output that its residue owns is right in a plain layer, and refused in one that is recomputed") {
  const run_of plain = scaled_run<false>(output_is::owned), again = scaled_run<true>(output_is::owned);
  CHECK(plain.ended == "");
  CHECK_MESSAGE(again.ended.find("the output of layer 0 'scaled' (micro-batch 0) is in memory that may be owned by "
                                 "what its forward returned") != std::string::npos,
                again.ended);
}
TEST_CASE("an output in scratch is refused, and one inside a larger lease is kept whole") {
  if constexpr (belay::checked(belay::check_level::local))
    CHECK(scaled_run<false>(output_is::scratch).ended.find("that its call has not kept, such as scratch") !=
          std::string::npos);
  CHECK(scaled_run<true>(output_is::scratch).ended.find("that its call has not kept, such as scratch") !=
        std::string::npos);
  const run_of plain = scaled_run<false>(output_is::inside_what_is_kept),
               again = scaled_run<true>(output_is::inside_what_is_kept);
  CHECK(plain.ended == "");
  CHECK(again.ended == "");
  CHECK(again.loss == plain.loss);
}

namespace {

// `lost` handles of the first layer are not called back.
void pass_of_two(const auto& scope, two& net, std::vector<float>& x, std::vector<float>& t, int lost) {
  auto h = belay::forward(scope, net.first, belay::constant(matrix{x.data(), {batch, width}}));
  auto y = belay::forward(scope, net.second, h.out());
  auto [loss, grad] = belay::squared_error(scope, y.out(), matrix{t.data(), {batch, width}});
  grad = std::move(y).backward(grad);
  if (lost > 0) {  // the slip
    belay::handle_store<std::remove_cvref_t<decltype(h)>> forgotten{1};
    forgotten.keep(0, std::move(h).hand_over());
    return;
  }
  std::move(h).backward(grad);
}

}  // namespace

TEST_CASE("a handle that is lost in the middle of a step is named where its memory is missed") {
  if constexpr (!belay::checked(belay::check_level::local)) return;
  const std::string why = what_of([] {
    belay::launch(belay::host::world{2}, [](auto& rank, auto& run) {
      belay::mesh mesh{rank, {.data = 2}};
      two net(output_is::inside_what_is_kept);
      belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
      belay::adamw optimizer{store};
      std::vector<float> x(batch * width, 1.0F), t(batch * width, 0.5F);
      for (const auto number : run.steps(3)) {
        belay::step step{run.engine(), store};
        step.micro_batches(3);
        for (std::size_t m = 0; m < 3; ++m) {
          const bool slips = number == 2 && rank.number() == 1 && m == 0 && !run.rehearsing();
          pass_of_two(step.micro_batch(m), net, x, t, slips ? 1 : 0);
        }
        auto outcome = std::move(step).commit(mesh, belay::samples{3 * 2 * batch});
        if (auto* ok = belay::committed(outcome)) optimizer.apply(std::move(*ok), {.learning_rate = 1e-2});
      }
    });
  });
  CHECK_MESSAGE(why.find("bytes left in the budget; 1 obligation is open whose handle is gone") != std::string::npos,
                why);
  CHECK_MESSAGE(why.find("saved activation of layer 0 'scaled' (micro-batch 0, 8x128, holds ") != std::string::npos,
                why);
  CHECK_MESSAGE(why.find("read_too_late.cpp:") != std::string::npos, why);
}
