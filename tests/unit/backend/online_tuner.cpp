// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/backend/host/tuning/online_tuner.hpp"

#include <doctest/doctest.h>
#include <stdlib.h>

#include <cstddef>
#include <string>

#include "belay/backend/host/options.hpp"
#include "belay/backend/host/rendezvous/call_descriptor.hpp"
#include "belay/backend/host/tuning/variant_choice.hpp"
#include "belay/core/error.hpp"

using belay::operation;
using belay::host::call_descriptor;
using belay::host::online_tuner;

namespace {

std::string line_with(const std::string& text, const std::string& word) {
  const std::size_t at = text.find("\n  " + word);
  if (at == std::string::npos) return "";
  return text.substr(at + 1, text.find('\n', at + 1) - at - 1);
}

}  // namespace

TEST_CASE("a settled kind is told with its variant and the times of all") {
  online_tuner tuner;
  CHECK(belay::host::settled_text(tuner, 2) == "");
  const std::size_t bytes = 8 << 20;
  const belay::fingerprint print{
      operation::broadcast, belay::reduction::none, belay::element_code_of<float>(), 0, 1, 0};
  const std::uint64_t kind =
      belay::host::tuning_kind(call_descriptor::head_of(print) | call_descriptor::loads_and_stores, bytes);
  const auto variants = belay::host::variants_of(call_descriptor::kind_of(kind, 2));
  REQUIRE(variants.size() > 1);
  for (int i = 0; i < online_tuner::most_calls; ++i) {
    const std::size_t now = tuner.next(kind, bytes, variants.size());
    if (tuner.settled()) break;
    tuner.done(now == 1 ? 500 : 1000);
  }
  const std::string text = belay::host::settled_text(tuner, 2);
  const std::string line = line_with(text, "broadcast");
  CHECK(line.find("8 MiB") != std::string::npos);
  CHECK(line.find(" mapped") != std::string::npos);
  CHECK(line.find(name(variants[1].by)) != std::string::npos);
  CHECK(line.find("1000.0 us rules") != std::string::npos);
  CHECK(line.find("500.0 us") != std::string::npos);
}

TEST_CASE("BELAY_TUNING is print or nothing") {
  ::unsetenv("BELAY_TUNING");
  CHECK(!belay::host::prints_tuning());
  ::setenv("BELAY_TUNING", "print", 1);
  CHECK(belay::host::prints_tuning());
  ::setenv("BELAY_TUNING", "loudly", 1);
  CHECK_THROWS_AS(static_cast<void>(belay::host::checked_options({}, {})), belay::input_error);
  ::unsetenv("BELAY_TUNING");
}
