// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The texts of BELAY_TUNING=print: the variants that a group has settled for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string_view>

#include "belay/backend/host/rendezvous/call_descriptor.hpp"
#include "belay/backend/host/tuning/algorithm_rules.hpp"
#include "belay/backend/host/tuning/online_tuner.hpp"
#include "belay/core/error.hpp"
#include "belay/core/process.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// "4 KiB", "96 B"
[[nodiscard]] BELAY_DECL std::string size_text(std::size_t bytes) {
  if (bytes >= (std::size_t{1} << 20)) return std::to_string(bytes >> 20) + " MiB";
  return bytes >= 1024 ? std::to_string(bytes >> 10) + " KiB" : std::to_string(bytes) + " B";
}
/// `text` and spaces up to `columns`.
[[nodiscard]] BELAY_DECL std::string column(std::string text, std::size_t columns) {
  text.resize(text.size() < columns ? columns : text.size() + 1, ' ');
  return text;
}

BELAY_DECL bool prints_tuning() {
  const char* const text = environment_variable("BELAY_TUNING");
  if (text == nullptr || *text == '\0') return false;
  if (std::string_view(text) != "print") {
    throw input_error("BELAY_TUNING=" + std::string(text) + ": there is print");
  }
  return true;
}

BELAY_DECL std::string settled_text(const online_tuner& tuner, int ranks) {
  std::string out;
  tuner.for_each_settled([&](std::uint64_t kind, std::size_t bytes, std::size_t chosen, std::span<const float> costs) {
    const call_kind call = call_descriptor::kind_of(kind, ranks);
    const std::span<const variant> variants = variants_of(call);
    if (chosen >= variants.size()) return;
    const auto text = [](const variant& one) {
      if (one == variant{}) return std::string("rules");
      return (one.how == algorithm::automatic ? std::string() : std::string(name(one.how)) + " ") +
             (one.by == memory_access::automatic ? "" : name(one.by));
    };
    out += "  " + column(name(call.what), 18) + column(size_text(bytes), 10) +
           column(std::string(call.direct ? "mapped" : "unmapped") + (call.in_place ? ", in place" : ""), 20) +
           column(text(variants[chosen]), 28);
    for (std::size_t i = 0; i < variants.size(); ++i) {
      char us[48];
      const double cost = static_cast<double>(costs[i]) * static_cast<double>(bytes);
      std::snprintf(us, sizeof us, "%s%.1f us ", i == 0 ? "(" : ", ", cost);
      out += us + text(variants[i]);
    }
    out += ")\n";
  });
  if (out.empty()) return out;
  return "belay tuning: settled variants of a group of " + std::to_string(ranks) + " ranks\n" + out;
}

BELAY_DECL void print_settled(const online_tuner& tuner, int ranks) noexcept {
  try {
    if (prints_tuning()) std::fputs(settled_text(tuner, ranks).c_str(), stderr);
  } catch (...) {
  }
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
