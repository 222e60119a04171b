// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// An expert exchange over a device: its kernels find, move and sum rows as the host's loops do, on one rank and between
// ranks that share the device.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <string>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/host.hpp"
#include "fakes/cuda/forgetful_api.hpp"
#include "unit/backend/exchanged_rows.hpp"
#include "unit/backend/fake_cuda.hpp"

using exchanged_rows::result, exchanged_rows::sizes, exchanged_rows::on_host;
using namespace fake_cuda;

namespace {

template <class T, class Api>
std::vector<result> on_fake(Api& api, int ranks, const sizes& of,
                            belay::freed_memory left = belay::freed_memory::poisoned) {
  return exchanged_rows::on_device<T>(api, ranks, of, left);
}

std::vector<fakes::device_options> some_orders() {
  std::vector<fakes::device_options> out{{fakes::work_order::eager}, {fakes::work_order::late}};
  for (std::uint64_t seed = 0; seed < 6; ++seed) out.push_back({fakes::work_order::random, seed});
  return out;
}

template <class T>
void check(const sizes& of) {
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    const std::vector<result> expected = on_host<T>(ranks, of);
    for (const fakes::device_options& how : some_orders()) {
      CAPTURE(static_cast<int>(how.order));
      CAPTURE(how.seed);
      api_type api(how);
      CHECK(on_fake<T>(api, ranks, of) == expected);
      CHECK(std::count(api.calls().begin(), api.calls().end(), "sort") == 2 * ranks - (ranks > 1 && of.rows == 1));
      CHECK(api.empty());
    }
  }
}

const sizes tight{7, 6, 3, 16, 13};  // too little room

}  // namespace

TEST_CASE("an expert exchange has the host's bits over a device, with and without room") {
  check<float>({5, 6, 2, 19, 30});
  check<float>(tight);
  check<float>({6, 12, 7, 3, 90});         // sums in passes
  check<belay::bf16>({4, 12, 7, 33, 28});  // rounded after each
}
TEST_CASE("waits that a device leaves out of an exchange are seen: within a rank, between ranks, and of the host") {
  // What is read too early may be an index, which a release build does not look at.
  if constexpr (!belay::checked(belay::check_level::local)) return;
  const std::vector<result> expected = on_host<float>(2, tight);
  const auto differs = [&](fakes::forgets what) {
    fakes::forgetful_api api({fakes::work_order::late}, what);
    try {
      return on_fake<float>(api, 2, tight) != expected;
    } catch (const belay::usage_error&) {  // counts that are none
      return true;
    } catch (const belay::comm_error&) {
      return true;
    }
  };
  CHECK(!differs(fakes::forgets::nothing));
  CHECK(differs(fakes::forgets::own));
  CHECK(differs(fakes::forgets::peers));
  CHECK(differs(fakes::forgets::counts));
}
TEST_CASE("a call of the device that fails in an exchange ends all ranks with its name, and nothing is left") {
  std::size_t calls = 0;
  for (std::size_t k = 0; k <= calls; k += 23) {  // which call of which rank, the threads decide
    CAPTURE(k);
    api_type api({fakes::work_order::late, 0, k});
    try {
      static_cast<void>(on_fake<float>(api, 2, tight, belay::freed_memory::as_it_was));
      if (k == 0) calls = api.calls().size() * 2 / 3;  // the rest ends something, which throws nothing
    } catch (const std::exception& problem) {
      CHECK(std::string(problem.what()).find("injected") != std::string::npos);
    }
    CHECK(api.empty());
  }
}
