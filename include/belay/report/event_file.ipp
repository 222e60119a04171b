// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Events as protocol buffers, and the records that hold them.
#pragma once

#include <unistd.h>

#include <bit>
#include <chrono>
#include <filesystem>
#include <span>
#include <system_error>

#include "belay/core/error.hpp"
#include "belay/core/hash.hpp"
#include "belay/report/event_file.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL event_file::event_file(const std::string& folder, where at) : file_(new_path(folder, at), at) {
  values_.reserve(reserved_bytes);
  event_.reserve(reserved_bytes);
  record_.reserve(reserved_bytes);
  begin_event(0);
  text_field(event_, 3, "brain.Event:2");
  write_event(at);
}

BELAY_DECL event_file& event_file::scalar(std::string_view tag, double value) {
  const std::size_t bytes = text_bytes(tag) + 1 + sizeof(float);
  number_field(values_, 1, length_delimited), varint(values_, bytes);
  text_field(values_, 1, tag);
  number_field(values_, 2, fixed32);
  little_endian(values_, std::bit_cast<std::uint32_t>(static_cast<float>(value)));
  return *this;
}

BELAY_DECL event_file& event_file::text(std::string_view tag, std::string_view markdown) {
  // One string in a tensor of one dimension, and whose it is: the plug-in of texts.
  constexpr std::string_view metadata = "\x0a\x06\x0a\x04text\x20\x02";
  constexpr std::string_view type_and_shape = "\x08\x07\x12\x04\x12\x02\x08\x01";
  const std::size_t tensor = type_and_shape.size() + text_bytes(markdown);
  const std::size_t bytes = text_bytes(tag) + text_bytes(metadata) + 1 + varint_bytes(tensor) + tensor;
  number_field(values_, 1, length_delimited), varint(values_, bytes);
  text_field(values_, 1, tag);
  number_field(values_, 8, length_delimited), varint(values_, tensor);
  values_ += type_and_shape;
  text_field(values_, 8, markdown);
  text_field(values_, 9, metadata);
  return *this;
}

BELAY_DECL void event_file::write(std::uint64_t step, where at) {
  if (values_.empty()) return;
  begin_event(step);
  text_field(event_, 5, values_);
  values_.clear();
  write_event(at);
}

BELAY_DECL void event_file::resume_at(std::uint64_t step, where at) {
  begin_event(step);
  constexpr std::string_view started = "\x08\x01";
  text_field(event_, 7, started);
  write_event(at);
}

BELAY_DECL void event_file::varint(std::string& to, std::uint64_t value) {
  for (; value >= 0x80U; value >>= 7U) to += static_cast<char>(static_cast<unsigned char>(value) | 0x80U);
  to += static_cast<char>(value);
}

BELAY_DECL std::size_t event_file::varint_bytes(std::uint64_t value) noexcept {
  std::size_t out = 1;
  for (; value >= 0x80U; value >>= 7U) ++out;
  return out;
}

BELAY_DECL void event_file::text_field(std::string& to, std::uint32_t field, std::string_view text) {
  number_field(to, field, length_delimited);
  varint(to, text.size());
  to += text;
}

BELAY_DECL std::size_t event_file::text_bytes(std::string_view text) noexcept {
  return 1 + varint_bytes(text.size()) + text.size();
}

BELAY_DECL void event_file::begin_event(std::uint64_t step) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  event_.clear();
  number_field(event_, 1, fixed64), little_endian(event_, std::bit_cast<std::uint64_t>(now.count()));
  number_field(event_, 2, number), varint(event_, step);
}

BELAY_DECL void event_file::write_event(where at) {
  record_.clear();
  little_endian(record_, std::uint64_t{event_.size()});
  little_endian(record_, masked(record_));
  record_ += event_;
  little_endian(record_, masked(event_));
  file_.write(record_, at);
}

BELAY_DECL std::uint32_t event_file::masked(std::string_view bytes) noexcept {
  const std::uint32_t plain = crc32c().add(std::as_bytes(std::span(bytes))).value();
  return (plain >> 15U | plain << 17U) + 0xa282ead8U;
}

BELAY_DECL std::string event_file::new_path(const std::string& folder, where at) {
  std::error_code wrong;
  std::filesystem::create_directories(folder, wrong);
  if (wrong)
    throw file_error(folder, 0, "cannot be made a folder of events: " + wrong.message() + "; name another", at);
  char host[65] = {};  // Linux has names of at most 64 bytes
  if (::gethostname(host, 64) != 0 || *host == '\0') host[0] = 'h', host[1] = '\0';
  for (char* c = host; *c != '\0'; ++c)
    if (*c == '/') *c = '-';
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  const std::string begin =
      folder + "/events.out.tfevents." + std::to_string(seconds) + "." + host + "." + std::to_string(::getpid()) + ".";
  int n = 0;
  while (std::filesystem::exists(begin + std::to_string(n), wrong)) ++n;
  if (wrong) throw file_error(begin + std::to_string(n), 0, "cannot be examined: " + wrong.message(), at);
  return begin + std::to_string(n);
}

}  // namespace belay::inline BELAY_ABI
