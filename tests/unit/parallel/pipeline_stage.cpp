// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/parallel/pipeline_stage.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "unit/parallel/support/staged_network.hpp"

using namespace staged;

namespace {

template <class Rule>
void train_by_pipeline(int stages, bool gpipe, Rule rule, trained& out) {
  const auto make_runner = [gpipe, rule](auto& mesh, network& net) {
    const auto count = static_cast<std::size_t>(mesh.shape().pipeline);
    return [stage = std::make_unique<belay::pipeline_stage<network>>(net, rule),
            pipeline = belay::pipeline{mesh,
                                       gpipe ? belay::schedule::gpipe(count, micro_batches)
                                             : belay::schedule::one_f_one_b(count, micro_batches),
                                       belay::boundary<float>({rows, width})}](auto& step, const batch& data) mutable {
      pipeline.run(step, *stage, data.inputs(), data.loss());
    };
  };
  belay::launch(belay::host::world{stages}, training_body(3, out, make_runner));
}

}  // namespace

TEST_CASE("a network in stages is a loop over its layers, bit for bit, whatever is recomputed") {
  trained loop;
  train_by_loop(3, loop);
  REQUIRE(loop.losses.size() == 3);
  CHECK(loop.losses[2] < loop.losses[0]);
  for (const int stages : {1, 2, 3}) {
    for (const bool gpipe : {false, true}) {
      CAPTURE(stages);
      CAPTURE(gpipe);
      trained none, all, second;
      train_by_pipeline(stages, gpipe, belay::recompute_none{}, none);
      train_by_pipeline(stages, gpipe, belay::recompute_all{}, all);
      train_by_pipeline(
          stages, gpipe, [](std::size_t number) { return number % 2 == 1; }, second);
      for (const trained* one : {&none, &all, &second}) {
        CHECK(one->losses == loop.losses);
        CHECK(one->norms == loop.norms);
        CHECK(one->values == loop.values);
      }
    }
  }
}
