#include "softnic/device/timer_heap.h"

namespace verbena::softnic {

void TimerHeap::Set(Timer& timer, Instant deadline) {
  timer.deadline = deadline;
  timer.sequence = next_sequence_++;
  if (!timer.IsSet()) {
    heap_.push_back(&timer);
    timer.place = static_cast<uint32_t>(heap_.size() - 1);
    SiftUp(timer.place);
    return;
  }
  SiftUp(timer.place);
  SiftDown(timer.place);
}

void TimerHeap::Remove(Timer& timer) {
  if (!timer.IsSet()) return;
  uint32_t hole = timer.place;
  timer.place = Timer::kNowhere;
  Timer* last = heap_.back();
  heap_.pop_back();
  if (last == &timer) return;
  Put(hole, last);
  SiftUp(hole);
  SiftDown(last->place);
}

void TimerHeap::SiftUp(uint32_t place) {
  Timer* timer = heap_[place];
  while (place > 0) {
    uint32_t parent = (place - 1) / 2;
    if (!Before(*timer, *heap_[parent])) break;
    Put(place, heap_[parent]);
    place = parent;
  }
  Put(place, timer);
}

void TimerHeap::SiftDown(uint32_t place) {
  Timer* timer = heap_[place];
  for (;;) {
    std::size_t child = 2 * static_cast<std::size_t>(place) + 1;
    if (child >= heap_.size()) break;
    if (child + 1 < heap_.size() && Before(*heap_[child + 1], *heap_[child])) ++child;
    if (!Before(*heap_[child], *timer)) break;
    Put(place, heap_[child]);
    place = static_cast<uint32_t>(child);
  }
  Put(place, timer);
}

}  // namespace verbena::softnic
