// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include <cstddef>
#include <deque>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/parallel/bucket.hpp"
#include "belay/parallel/pipeline.hpp"
#include "belay/parallel/schedule.hpp"
#include "belay/step.hpp"
#include "belay/train.hpp"

namespace {

using tensor = belay::view<double, 3>;
using constant_tensor = belay::view<const double, 3>;

// y = weight * x. The weight is the caller's, so that several layers can share it.
class scaling {
 public:
  struct residue {
    tensor out;
    constant_tensor x;
  };

  explicit scaling(belay::parameter<double>& weight) : weight_(&weight) {}

  template <class Frame>
  residue forward(Frame& frame, constant_tensor x) {
    residue r{frame.template keep<double>(x.shape()), x};
    frame.run([&] {
      for (std::size_t i = 0; i < x.size(); ++i) r.out.data()[i] = *weight_->value() * x.data()[i];
    });
    return r;
  }

  template <class Frame>
  void backward(Frame& frame, residue&& r, constant_tensor dout, tensor dx) {
    frame.run([&] {
      for (std::size_t i = 0; i < dout.size(); ++i) dx.data()[i] = *weight_->value() * dout.data()[i];
      for (std::size_t i = 0; i < dout.size(); ++i) *weight_->gradient() += r.x.data()[i] * dout.data()[i];
    });
  }

 private:
  belay::parameter<double>* weight_;
};

using buckets = belay::gradient_buckets<double, belay::host::group>;

struct bench {
  belay::tier_meter meter;
  belay::host_engine engine{belay::host_pages{1 << 16}, meter};
};

}  // namespace

TEST_CASE("two layers of a rank share a parameter: its bucket goes when both have contributed") {
  for (const int ranks : {1, 3}) {
    belay::host::world{ranks}.run([](belay::host::rank& rank) {
      belay::parameter<double> weight{
          {.name = "shared", .shape = {1}, .first_values = belay::initial::constant(3), .uses = 2}};
      scaling lower{weight}, upper{weight};
      std::vector<belay::bucket_member<double>> members{{weight, 0}};  // once
      buckets gradients{members, {{rank.world()}}, 1 << 20, 1};
      std::vector<double> values(gradients.layout().elements()), grads(gradients.layout().gradient_elements());
      gradients.bind(values, grads);
      weight.initialise(1);

      bench b;
      const double x = rank.number() + 1, one = 1;
      belay::step step{b.engine};
      gradients.begin(1);
      auto hidden = belay::forward(step, lower, constant_tensor{&x, {1, 1, 1}});
      auto out = belay::forward(step, upper, hidden.out());
      CHECK(out.out()(0, 0, 0) == 9 * x);
      auto grad = std::move(out).backward(constant_tensor{&one, {1, 1, 1}});
      gradients.contributed(0, 1, 0);
      CHECK(gradients.launched() == 0);
      grad = std::move(hidden).backward(grad);
      gradients.contributed(0, 1, 0);
      CHECK(gradients.launched() == 1);
      auto reduced = gradients.finish(belay::target_tokens{1});
      const double all = rank.size() * (rank.size() + 1) / 2.0;  // of x
      CHECK(*reduced.owned()[0].gradient == 2 * 3 * all);        // of w * w * x by w
      static_cast<void>(std::move(step).commit());
    });
  }
}

TEST_CASE("two stages hold a copy each of what they share: a replica group of both keeps the copies equal") {
  belay::host::world{2}.run([](belay::host::rank& rank) {
    belay::parameter<double> weight{{.name = "shared", .shape = {1}, .first_values = belay::initial::normal(1)}};
    buckets gradients{{{weight, 0}}, {{rank.world()}}, 1 << 20, 1};
    std::vector<double> values(gradients.layout().elements()), grads(gradients.layout().gradient_elements());
    gradients.bind(values, grads);
    weight.initialise(1);

    scaling half{weight};
    bench b;
    const double w = *weight.value(), x = 5, above = w;  // what comes from the other stage, forward and backward
    const double input = rank.number() == 0 ? x : w * x, dout = rank.number() == 0 ? above : 1;
    belay::step step{b.engine};
    gradients.begin(1);
    auto out = belay::forward(step, half, constant_tensor{&input, {1, 1, 1}});
    static_cast<void>(std::move(out).backward(constant_tensor{&dout, {1, 1, 1}}));
    gradients.contributed(0, 1, 0);
    auto reduced = gradients.finish(belay::target_tokens{1});
    CHECK(*reduced.owned()[0].gradient == doctest::Approx(2 * w * x));
    static_cast<void>(std::move(step).commit());
  });
}

namespace {

constexpr std::size_t rows = 3, width = 5, micro_batches = 4;
using matrix = belay::view<const float, 2>;

// y = x W, whose W is shared.
struct shared_projection {
  belay::parameter<float>* weight;

  struct residue {
    belay::view<float, 2> out;
    matrix x;
  };
  residue forward(auto& frame, matrix x) {
    const residue r{belay::keep<float>(frame, x.shape()), x};
    frame.product(r.out, x, frame.read(*weight));
    return r;
  }
  void backward(auto& frame, residue&& r, matrix dy, belay::view<float, 2> dx) {
    frame.product(frame.add_to(*weight), transposed(r.x), dy);
    frame.product(dx, dy, transposed(frame.read(*weight)));
  }
};

// A stage of some layers that share the weight of all.
struct projections {
  std::deque<shared_projection> all;
  projections(belay::parameter<float>& weight, std::size_t count) : all(count, shared_projection{&weight}) {}
  [[nodiscard]] std::deque<shared_projection>& layers() { return all; }
};
struct tied_model {
  belay::parameter<float> weight{
      {.name = "shared", .shape = {width, width}, .first_values = belay::initial::normal(0.6), .uses = 4}};
  void for_each_parameter(auto&& visit) { visit(weight); }
};

// The norms of the gradient of the shared weight, in some steps of a rank whose chunks use it four times.
template <int Stage>
std::vector<double> norms_of(const belay::schedule::dynamic_table& table) {
  std::vector<double> out;
  std::vector<float> numbers(micro_batches * rows * width);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i % 11) / 8 - 0.4F;
  const belay::view<const float, 3> inputs{numbers.data(), {micro_batches, rows, width}};
  belay::launch(belay::host::world{1}, [&](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.pipeline = 1}};
    tied_model model;
    belay::parameter_store store{run, mesh, model, belay::zero<Stage>{}};
    belay::adamw optimizer{store};
    std::deque<projections> parts;
    std::deque<belay::pipeline_stage<projections>> own;
    std::vector<belay::pipeline_stage<projections>*> pointers;
    for (std::size_t chunk = 0; chunk < table.chunks(); ++chunk)
      pointers.push_back(&own.emplace_back(parts.emplace_back(model.weight, 4 / table.chunks())));
    belay::pipeline pipeline{mesh, table, belay::boundary<float>({rows, width})};
    for (auto number : run.steps(3)) {
      static_cast<void>(number);
      belay::step step{run.engine(), store};
      const auto loss = [&](const auto& scope, matrix y) {
        return belay::squared_error(scope, y, inputs[scope.micro_batch()]);
      };
      pipeline.run(step, belay::stages_of_rank<belay::pipeline_stage<projections>>(pointers), inputs, loss);
      auto outcome = std::move(step).commit(mesh, belay::samples{micro_batches * rows});
      auto* const ok = belay::committed(outcome);
      if (ok == nullptr) continue;
      run.report(*ok, [&](const belay::step_summary& end) { out.push_back(end.norm); });
      optimizer.apply(std::move(*ok), {.learning_rate = 1e-2, .clip = 1.0});
    }
  });
  return out;
}

}  // namespace

TEST_CASE("chunks of a rank that share a weight add to it once a use, in whatever order a schedule runs them") {
  using namespace belay::schedule;
  const auto one_stage = named_table("1f1b", 1, micro_batches);
  const std::vector<double> alone = norms_of<1>(one_stage);
  REQUIRE(alone.size() == 3);
  const auto in_order = [](const std::string& of_one) {
    std::string row = "belay-schedule 2,own,1,4,2,0 1\n";
    for (const char m : {'0', '1', '2', '3'})
      for (const char c : of_one) row += c == 'm' ? m : c;
    row.back() = '\n';
    return from_csv(row);
  };
  // Of each micro-batch, from the last stage down.
  CHECK(norms_of<1>(in_order("Fm,Fm.1,Bm.1,Bm,")) == alone);
  CHECK(norms_of<1>(in_order("Fm,Fm.1,Im.1,Im,Wm.1,Wm,")) == alone);
  CHECK(norms_of<2>(in_order("Fm,Fm.1,Im.1,Wm.1,Im,Wm,")) == norms_of<2>(one_stage));
  const auto close = [&](const std::vector<double>& got) {
    REQUIRE(got.size() == alone.size());
    for (std::size_t i = 0; i < got.size(); ++i) CHECK(got[i] == doctest::Approx(alone[i]).epsilon(1e-5));
  };
  close(norms_of<1>(in_order("Fm,Fm.1,Im.1,Im,Wm,Wm.1,")));
  for (const char* name :
       {"interleaved:2", "interleaved:4", "bfs:2", "interleaved-zb:2", "zb-v", "v-min", "dualpipe-v"}) {
    CAPTURE(name);
    close(norms_of<1>(named_table(name, 1, micro_batches)));
    close(norms_of<2>(named_table(name, 1, micro_batches)));
  }
}
