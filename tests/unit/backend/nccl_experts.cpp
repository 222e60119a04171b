// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// An expert exchange of ranks that have a device each: rows are packed, and sent into the slots of their experts.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/host.hpp"
#include "belay/backend/nccl.hpp"
#include "fakes/cuda/forgetful_api.hpp"
#include "fakes/nccl/failing_nccl.hpp"
#include "unit/backend/exchanged_rows.hpp"
#include "unit/train/support/failed_launch.hpp"

using exchanged_rows::result, exchanged_rows::sizes, exchanged_rows::on_host;
using fakes::work_order;

namespace {

constexpr belay::nccl::world_options options{
    .ranks = {.workspace_bytes = 1 << 14, .watch_period = std::chrono::milliseconds(5)}};
const sizes tight{7, 6, 3, 16, 13};  // too little room

template <class T, class Api, class N>
std::vector<result> over_nccl(Api& api, const N& nccl, const belay::host::world_options& control, int ranks,
                              const sizes& of, belay::freed_memory left = belay::freed_memory::poisoned) {
  return exchanged_rows::on_world<T>(belay::nccl::world(api, nccl, belay::host::world(ranks, control), options), of,
                                     left);
}
template <class T>
void check(const sizes& of) {
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    const std::vector<result> expected = on_host<T>(ranks, of);
    for (fakes::device_options how : {fakes::device_options{work_order::eager},
                                      {work_order::late},
                                      {work_order::random, 1},
                                      {work_order::random, 2}}) {
      CAPTURE(static_cast<int>(how.order));
      how.devices = ranks;
      fakes::device_api api(how);
      fakes::nccl_fabric fabric(api);
      CHECK(over_nccl<T>(api, fakes::nccl_api(fabric), {}, ranks, of) == expected);
      CHECK(fabric.refusals().empty());
      CHECK(fabric.empty());
      CHECK(api.empty());
    }
  }
}

// The error that two ranks throw, or none.
failed_launch::thrown thrown_by(fakes::one_failure& how, std::size_t device_fails_at = 0,
                                std::chrono::duration<double> timeout = std::chrono::seconds(60),
                                failed_launch::device_calls* made = nullptr) {
  fakes::device_api api({.order = work_order::late, .fail_at = device_fails_at, .devices = 2});
  fakes::nccl_fabric fabric(api);
  const auto got = failed_launch::of([&] {
    const fakes::failing_nccl nccl(fabric, how);
    static_cast<void>(over_nccl<float>(api, nccl, {.timeout = timeout}, 2, tight, belay::freed_memory::as_it_was));
  });
  CHECK(fabric.refusals().empty());
  CHECK(fabric.empty());
  CHECK(api.empty());
  if (made != nullptr) *made = {api.calls(), api.calls().size(), {}};
  return got;
}

}  // namespace

TEST_CASE("experts of ranks with a device each have the host's bits, with and without room") {
  check<float>({5, 6, 2, 19, 30});
  check<float>(tight);
  check<float>({0, 12, 3, 8, 40});         // rank 0 has no tokens, most experts no rows
  check<float>({6, 12, 7, 3, 90});         // sums in passes
  check<float>({4, 6, 2, 5, 0});           // room for none
  check<belay::bf16>({4, 12, 7, 33, 28});  // rounded after each
}
TEST_CASE("rows that are sent before they are packed, and read before they have come, are seen") {
  // What is read too early may be an index, which a release build does not look at.
  if constexpr (!belay::checked(belay::check_level::local)) return;
  const std::vector<result> expected = on_host<float>(2, tight);
  const auto differs = [&](fakes::forgets what) {
    fakes::forgetful_api api({.order = work_order::late, .devices = 2}, what);
    fakes::nccl_fabric fabric(api);
    try {
      return over_nccl<float>(api, fakes::nccl_api(fabric), {}, 2, tight) != expected;
    } catch (const belay::error&) {  // counts that are none
      return true;
    }
  };
  CHECK(!differs(fakes::forgets::nothing));
  CHECK(differs(fakes::forgets::own));
}
TEST_CASE("a call of NCCL that fails in an exchange of experts ends both ranks with its name, and nothing is left") {
  fakes::one_failure none;
  CHECK(thrown_by(none).what.empty());
  const std::vector<std::string> names = none.names;
  CHECK(std::count(names.begin(), names.end(), "group_end") == 8);  // two dispatches and their ways back
  for (std::size_t k = 1; k <= names.size(); ++k) {
    const std::string& name = names[k - 1];
    CAPTURE(name);
    CAPTURE(k);
    using failing_way = fakes::nccl_injection::failing_way;
    fakes::one_failure at_once{.what = {k, failing_way::fails}};
    const failed_launch::thrown got = thrown_by(at_once);
    CHECK((got.has("rank 1: " + name) && got.has("injected")));
    if (name != "group_end") continue;
    fakes::one_failure later{.what = {k, failing_way::asynchronous}};
    CHECK(thrown_by(later).has("injected"));
    fakes::one_failure never{.what = {k, failing_way::silent}};
    CHECK(thrown_by(never, 0, std::chrono::milliseconds(200)).has("rank"));
  }
}
TEST_CASE("a call of a device that fails in an exchange of experts over NCCL is told, and nothing is left") {
  fakes::one_failure none;
  failed_launch::device_calls usual;
  static_cast<void>(thrown_by(none, 0, std::chrono::seconds(60), &usual));
  for (std::size_t k = 1; k <= usual.names.size(); k += 17) {
    CAPTURE(k);
    fakes::one_failure still;
    failed_launch::device_calls made;  // how often a host asks a device whether it is done differs from run to run
    const failed_launch::thrown got = thrown_by(still, k, std::chrono::seconds(60), &made);
    failed_launch::check_device(got, made, k, usual);
  }
}
