// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Memory goes from one stream to another when that has queued a wait for what used it; and where the rule is taken
// away, a seed is found that shows it.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <span>

#include "belay/backend/host.hpp"
#include "belay/train.hpp"

using belay::stream_choice;
using belay::stream_policy;

namespace {

// Memory goes from the compute stream to a communication, which begins before the last kernel that reads it, and from a
// communication to the compute stream, which does not wait for it.
template <class Rank, class Run>
void hand_memory_over(Rank& rank, Run& run, double& found) {
  using belay::stream_kind;
  constexpr std::size_t count = 100;
  const auto world = rank.world();
  auto& memory = run.engine().activations();
  auto& compute = run.engine().compute();
  const auto sum = run.template lease<double>(belay::tier::device, 1, "sum");
  const auto sent = run.template lease<double>(belay::tier::device, count, "sent");
  const auto gathered = run.template lease<double>(belay::tier::device, 2 * count, "gathered");
  const auto fill = [&](double* to, double value) { compute.run([to, value] { std::fill_n(to, count, value); }); };
  const auto add = [&](const double* from, std::size_t elements) {
    compute.run([from, elements, to = sum.data()] { *to += std::accumulate(from, from + elements, 0.0); });
  };
  fill(sent.data(), 7);
  for (int round = 1; round <= 3; ++round) {
    belay::lease_chain first, second, third, fourth;
    const auto read = memory.template lease<double>(belay::extents<1>{2 * count}, first);
    fill(read.data(), round);
    const belay::stream_event early = compute.record();
    add(read.data(), count);
    memory.release(first);
    const auto received =
        memory.template lease_for<double>(stream_kind::communication, early, belay::extents<1>{2 * count}, second);
    belay::pending gather = world.start_all_gather(std::span<const double>(sent), received.flat(), belay::after(early));
    memory.used_until(gather.event(), received.data(), received.size() * sizeof(double));
    std::move(gather).then(compute);
    add(received.data(), 2 * count);
    memory.release(second);

    const auto given = memory.template lease<double>(belay::extents<1>{count}, third);
    fill(given.data(), 10 * round);
    belay::pending other = world.start_all_gather(belay::view<const double, 1>(given).flat(), std::span(gathered),
                                                  belay::after(compute.record()));
    memory.used_until(other.event(), given.data(), given.size() * sizeof(double));
    memory.release(third);
    const auto written = memory.template lease<double>(belay::extents<1>{count}, fourth);
    fill(written.data(), 1000);
    std::move(other).then(compute);
    add(gathered.data(), 2 * count);
    memory.release(fourth);
  }
  compute.synchronize();
  if (!run.rehearsing() && rank.number() == 0) found = sum[0];
}
template <class Stream>
double found_after(const stream_choice& how) {
  double found = 0;
  const auto body = [&](auto& rank, auto& run) { hand_memory_over(rank, run, found); };
  belay::launch<belay::host_kit<belay::kernel::blocked_products, Stream>>(belay::host::world{2}, body,
                                                                          {.streams = how});
  return found;
}
// 100 read, 200 received and 200 gathered.
constexpr double handed_over = 100 * (1 + 2 + 3) + 3 * 200 * 7 + 200 * 10 * (1 + 2 + 3);

// It says of itself that it comes after everything: a lease may be any range that is free.
struct boastful_stream : belay::host_stream {
  using host_stream::host_stream;
  [[nodiscard]] belay::stream_event record() { return host_stream::record().at(*latest_); }
  [[nodiscard]] const std::shared_ptr<belay::stream_clock>& clock() const noexcept { return latest_; }

 private:
  std::shared_ptr<belay::stream_clock> latest_ = std::make_shared<belay::stream_clock>(belay::stream_clock::unknown());
};

}  // namespace

TEST_CASE("memory goes to another stream when that has queued a wait for what used it") {
  CHECK(found_after<belay::host_stream>({stream_policy::immediate, 0}) == handed_over);
  CHECK(found_after<belay::host_stream>({stream_policy::queued, 0}) == handed_over);
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    INFO("seed " << seed);
    CHECK(found_after<belay::host_stream>({stream_policy::adversarial, seed}) == handed_over);
  }
}

TEST_CASE("a wrong policy does not pass: what is free goes to whoever asks") {
  std::optional<std::uint64_t> caught;
  for (std::uint64_t seed = 0; seed < 100 && !caught; ++seed)
    if (found_after<boastful_stream>({stream_policy::adversarial, seed}) != handed_over) caught = seed;
  REQUIRE(caught);
  MESSAGE("without the event before memory goes to another stream: caught by seed " << *caught);
}
