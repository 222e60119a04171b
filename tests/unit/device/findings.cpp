// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/device/findings.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

#include "belay/device/host_stream.hpp"
#include "belay/kernel/findings.hpp"
#include "belay/kernel/rows.hpp"

using belay::stream_policy;
using belay::kernel::findings_note;

namespace {

struct on_a_stream {
  belay::findings<belay::host_pages> found;
  belay::host_stream stream;
  explicit on_a_stream(stream_policy how) : stream(belay::stream_settings{how}) {}

  [[nodiscard]] findings_note note(std::uint32_t layer, std::uint32_t micro_batch) const {
    return {found.record(), {"experts", "train.cpp", 30, layer, micro_batch}};
  }
};

}  // namespace

TEST_CASE("what kernels find is read after one event, and the next step begins with nothing") {
  for (const stream_policy how : {stream_policy::immediate, stream_policy::queued}) {
    on_a_stream here(how);
    here.found.begin(here.stream, 1);
    for (std::uint32_t m = 0; m < 3; ++m)
      here.stream.run([note = here.note(2, m)] {
        note.add_loss(0.1);
        note.add_loss(note.site.micro_batch == 1 ? std::numeric_limits<double>::quiet_NaN() : 1e16, 4);
        note.need_rows(10 - note.site.micro_batch);
        if (note.site.micro_batch > 0 && note.below(std::int32_t{70}, 64, 3)) throw std::runtime_error("70 < 64");
        if (!note.below(std::int32_t{63}, 64, 3)) throw std::runtime_error("63 >= 64");
      });
    const auto& read = here.found.read(here.found.copy(here.stream), 1);
    CHECK(read.loss_count == 12);
    CHECK(read.needed_rows == 10);
    CHECK(read.wrong == 2);
    CHECK(read.first_wrong.site.micro_batch == 1);
    CHECK(read.not_finite == 1);
    CHECK(read.first_not_finite.site.micro_batch == 1);
    here.found.begin(here.stream, 2);
    here.stream.run([note = here.note(2, 0)] { note.add_loss(0.1), note.add_loss(1e16); });
    const auto& again = here.found.read(here.found.copy(here.stream), 2);
    CHECK(again.loss == 0.1 + 1e16);  // in the order of the stream
    CHECK(again.wrong + again.not_finite + again.needed_rows + again.loss_count == 0);
  }
}

TEST_CASE("a read without the event of its copy is a named error, and so is one of another step") {
  on_a_stream here(stream_policy::immediate);
  here.found.begin(here.stream, 7);
  CHECK_THROWS_WITH_AS(static_cast<void>(here.found.read({}, 7)),
                       doctest::Contains("an event is missing before the host"), belay::usage_error);
  const belay::stream_event copied = here.found.copy(here.stream);
  CHECK(here.found.read(copied, 7).wrong == 0);
  CHECK_THROWS_AS(static_cast<void>(here.found.read(copied, 8)), belay::usage_error);
}

TEST_CASE("the copy of a stream that has failed is not read") {
  on_a_stream here(stream_policy::queued);
  here.found.begin(here.stream, 1);
  here.stream.run([] { throw std::runtime_error("the cause"); });
  CHECK_THROWS_WITH(static_cast<void>(here.found.read(here.found.copy(here.stream), 1)), "the cause");
}

TEST_CASE("a finding says layer, micro-batch and line, and what is wrong") {
  on_a_stream here(stream_policy::immediate);
  here.found.begin(here.stream, 1);
  CHECK(!here.note(2, 1).below(std::int32_t{-1}, 64, 3));
  const auto& read = here.found.read(here.found.copy(here.stream), 1);
  CHECK(belay::text(read.first_wrong) == "layer 2 'experts' (micro-batch 1): index -1 at position 3 is not below 64");
  CHECK(belay::site_of(read.first_wrong).text() == "train.cpp:30");
  here.found.begin(here.stream, 2);
  here.note(belay::kernel::finding_site::no_layer, 0).rows_outside(3, 17, 20, 16);
  CHECK(
      belay::text(here.found.read(here.found.copy(here.stream), 2).first_wrong) ==
      "'experts' (micro-batch 0): the rows of expert 3 end at 17, after 20 and of 16: were they read before they were "
      "written?");
  const findings_note nowhere;
  CHECK(!nowhere);
  nowhere.add_loss(1);
  CHECK(!nowhere.below(std::int32_t{64}, 64, 0));
}

TEST_CASE("rows of an index that is none are zeros, are not added to, and have no loss") {
  on_a_stream here(stream_policy::immediate);
  here.found.begin(here.stream, 1);
  const std::vector<float> table{1, 2, 3, 4};
  const std::vector<std::int32_t> index{1, 2, -1};
  std::vector<float> rows(6, 9), sums(4, 0);
  belay::kernel::for_each_row(3, belay::kernel::gather_rows<float, std::int32_t>{
                                     table.data(), index.data(), rows.data(), 2, 1, 2, here.note(0, 0)});
  CHECK(rows == std::vector<float>{3, 4, 0, 0, 0, 0});
  belay::kernel::for_each_row(
      1, belay::kernel::accumulate_rows<float, std::int32_t>{rows.data(), index.data(), 3, sums.data(), 2, 2});
  CHECK(sums == std::vector<float>{0, 0, 3, 4});
  std::vector<float> gradient(6, 9);
  std::vector<double> losses(3, 9);
  const std::vector<std::int32_t> targets{0, 2, belay::kernel::ignored_target};
  belay::kernel::for_each_row(3, belay::kernel::cross_entropy_rows<float>{rows.data(), targets.data(), losses.data(),
                                                                          gradient.data(), 2, 1, here.note(1, 0)});
  CHECK(losses[0] > 0);
  CHECK(losses[1] == 0);
  CHECK(gradient[2] == 0);
  const auto& read = here.found.read(here.found.copy(here.stream), 1);
  CHECK(read.wrong == 3);
  CHECK(belay::text(read.first_wrong) == "layer 0 'experts' (micro-batch 0): index 2 at position 1 is not below 2");
}
