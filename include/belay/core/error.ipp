// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What the exceptions say.
#pragma once

#include <sys/stat.h>

#include <cerrno>
#include <cstddef>
#include <new>
#include <string_view>
#include <utility>

#include "belay/core/error.hpp"
#include "belay/core/printable.hpp"

namespace belay::inline BELAY_ABI {

[[gnu::cold]] BELAY_DECL error_kind kind_of(const std::exception& problem) noexcept {
  const auto* const ours = dynamic_cast<const error*>(&problem);
  return ours != nullptr ? ours->kind() : error_kind::other;
}

[[gnu::cold]] BELAY_DECL const char* message_of(const std::exception& problem) noexcept {
  const char* const text = problem.what();
  return text == nullptr || *text == '\0' ? "(no text)" : text;
}

[[gnu::cold]] BELAY_DECL error::error(const std::string& message, where at)
    : std::runtime_error((at.line == 0 ? "belay: " : at.text() + ": belay: ") + printable_lines(message)), at_(at) {}

[[gnu::cold]] BELAY_DECL void error::name_call(const std::string& call) {
  if (std::exchange(call_named_, true)) return;
  const std::size_t site = at_.line == 0 ? 0 : at_.text().size() + 2;
  std::string text = what();
  text.insert(site + std::string_view("belay: ").size(), printable(call) + ": ");
  static_cast<std::runtime_error&>(*this) = std::runtime_error(text);
}

[[gnu::cold]] BELAY_DECL layer_error::layer_error(const std::string& call, const std::exception& thrown, where at)
    : error(message_of(thrown), at) {
  name_call(call);
}

[[gnu::cold]] BELAY_DECL void rethrow_from(const std::string& call, where at) {
  try {
    throw;
  } catch (error& ours) {
    ours.name_call(call);
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& thrown) {
    throw layer_error(call, thrown, at);
  }
}

[[gnu::cold]] BELAY_DECL size_error::size_error(const std::string& what, where at)
    : usage_error(what + " more than any memory holds", at) {}

[[gnu::cold]] BELAY_DECL input_error::input_error(const std::string& message, where at)
    : error(printable(message), at) {}

[[gnu::cold]] BELAY_DECL budget_error::budget_error(const std::string& tier, std::size_t requested_bytes,
                                                    std::size_t available_bytes, where at, const std::string& also)
    : error(tier + " tier: " + std::to_string(requested_bytes) + " bytes requested, " +
                std::to_string(available_bytes) + " bytes left in the budget" + also,
            at),
      requested_bytes_(requested_bytes),
      available_bytes_(available_bytes) {}

[[gnu::cold]] BELAY_DECL file_error::file_error(const std::string& path, std::uint64_t offset,
                                                const std::string& message, where at, int rank)
    : error((rank < 0 ? "" : "rank " + std::to_string(rank) + ": ") + printable(path + ": " + message) +
                (offset == 0 ? "" : " (byte " + std::to_string(offset) + ")"),
            at),
      path_(path),
      offset_(offset),
      message_(message),
      rank_(rank) {}

[[gnu::cold]] BELAY_DECL comm_error::comm_error(details what)
    : error(text(what), what.here), details_(std::move(what)) {}

[[gnu::cold]] BELAY_DECL std::string comm_error::text(const details& d) {
  std::string message = name(d.fault);
  if (!d.operation.empty())
    message.append(" in ").append(d.operation).append(" #").append(std::to_string(d.operation_number));
  if (!d.culprits.empty()) message.append(d.culprits.size() == 1 ? ", rank " : ", ranks ");
  for (std::size_t i = 0; i < d.culprits.size(); ++i)
    message.append(i == 0 ? "" : ", ").append(std::to_string(d.culprits[i]));
  if (!d.there.empty()) message.append(" at ").append(d.there);
  if (!d.message.empty()) message.append(": ").append(d.message);
  return printable(message);
}

[[gnu::cold]] BELAY_DECL backend_error::backend_error(details what)
    : error(text(what), what.here), details_(std::move(what)) {}

[[gnu::cold]] BELAY_DECL std::string backend_error::text(const details& d) {
  std::string message = "rank " + std::to_string(d.rank) + ": " + d.call;
  if (d.bytes > 0) message.append(" of ").append(std::to_string(d.bytes)).append(" bytes");
  return printable(message.append(": ").append(d.message));
}

[[gnu::cold]] BELAY_DECL std::string printable_what(const std::exception& problem) {
  return printable_lines(message_of(problem));
}

[[gnu::cold]] BELAY_DECL std::string missing_folder(const std::string& path) {
  for (std::size_t end = path.find('/', 1); end != std::string::npos; end = path.find('/', end + 1)) {
    const std::string folder = path.substr(0, end);
    struct stat facts = {};
    if (::stat(folder.c_str(), &facts) != 0) return errno == ENOENT ? " (there is no folder " + folder + ")" : "";
    if (!S_ISDIR(facts.st_mode)) return " (" + folder + " is no folder)";
  }
  return "";
}

[[gnu::cold]] BELAY_DECL std::string shape_text(std::span<const std::size_t> shape) {
  std::string out;
  for (std::size_t extent : shape) {
    if (!out.empty()) out += 'x';
    out += std::to_string(extent);
  }
  return out;
}

[[gnu::cold]] BELAY_DECL void refuse_tensor(std::span<const std::size_t> shape, std::size_t element_bytes,
                                            function_ref<std::string()> owner, const where& at) {
  throw size_error(owner() + ": " + shape_text(shape) + " elements of " + std::to_string(element_bytes) + " bytes are",
                   at);
}

}  // namespace belay::inline BELAY_ABI
